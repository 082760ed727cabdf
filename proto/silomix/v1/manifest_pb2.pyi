from silomix.v1 import cohort_pb2 as _cohort_pb2
from silomix.v1 import plan_pb2 as _plan_pb2
from silomix.v1 import schema_pb2 as _schema_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UpdateKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UPDATE_KIND_UNSPECIFIED: _ClassVar[UpdateKind]
    UPDATE_KIND_DELTA: _ClassVar[UpdateKind]
    UPDATE_KIND_WEIGHTS: _ClassVar[UpdateKind]

class Granularity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GRANULARITY_UNSPECIFIED: _ClassVar[Granularity]
    GRANULARITY_NONE: _ClassVar[Granularity]
    GRANULARITY_MODEL: _ClassVar[Granularity]
    GRANULARITY_LAYER: _ClassVar[Granularity]
    GRANULARITY_PARAMETER: _ClassVar[Granularity]
    GRANULARITY_UNARY: _ClassVar[Granularity]
    GRANULARITY_SUM: _ClassVar[Granularity]
UPDATE_KIND_UNSPECIFIED: UpdateKind
UPDATE_KIND_DELTA: UpdateKind
UPDATE_KIND_WEIGHTS: UpdateKind
GRANULARITY_UNSPECIFIED: Granularity
GRANULARITY_NONE: Granularity
GRANULARITY_MODEL: Granularity
GRANULARITY_LAYER: Granularity
GRANULARITY_PARAMETER: Granularity
GRANULARITY_UNARY: Granularity
GRANULARITY_SUM: Granularity

class RoundKey(_message.Message):
    __slots__ = ("hop", "silo", "round", "public_key", "signature", "last_released", "attempt")
    HOP_FIELD_NUMBER: _ClassVar[int]
    SILO_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    LAST_RELEASED_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    hop: str
    silo: str
    round: int
    public_key: bytes
    signature: bytes
    last_released: int
    attempt: int
    def __init__(self, hop: _Optional[str] = ..., silo: _Optional[str] = ..., round: _Optional[int] = ..., public_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., last_released: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class Fence(_message.Message):
    __slots__ = ("hop", "round", "attempt", "signature", "manifest_digest")
    HOP_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    hop: str
    round: int
    attempt: int
    signature: bytes
    manifest_digest: bytes
    def __init__(self, hop: _Optional[str] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., signature: _Optional[bytes] = ..., manifest_digest: _Optional[bytes] = ...) -> None: ...

class Bond(_message.Message):
    __slots__ = ("manifest_digest", "participants", "grouping_seal", "hops", "signature", "check_digest")
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    GROUPING_SEAL_FIELD_NUMBER: _ClassVar[int]
    HOPS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CHECK_DIGEST_FIELD_NUMBER: _ClassVar[int]
    manifest_digest: bytes
    participants: _containers.RepeatedCompositeFieldContainer[_cohort_pb2.Participant]
    grouping_seal: bytes
    hops: _containers.RepeatedCompositeFieldContainer[BoundHop]
    signature: bytes
    check_digest: bytes
    def __init__(self, manifest_digest: _Optional[bytes] = ..., participants: _Optional[_Iterable[_Union[_cohort_pb2.Participant, _Mapping]]] = ..., grouping_seal: _Optional[bytes] = ..., hops: _Optional[_Iterable[_Union[BoundHop, _Mapping]]] = ..., signature: _Optional[bytes] = ..., check_digest: _Optional[bytes] = ...) -> None: ...

class BoundHop(_message.Message):
    __slots__ = ("hop", "root_in", "root_out", "pad_digest", "signature")
    HOP_FIELD_NUMBER: _ClassVar[int]
    ROOT_IN_FIELD_NUMBER: _ClassVar[int]
    ROOT_OUT_FIELD_NUMBER: _ClassVar[int]
    PAD_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    hop: str
    root_in: bytes
    root_out: bytes
    pad_digest: bytes
    signature: bytes
    def __init__(self, hop: _Optional[str] = ..., root_in: _Optional[bytes] = ..., root_out: _Optional[bytes] = ..., pad_digest: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("federation_digest", "round", "attempt", "model_digest", "schema_digest", "schema", "plan", "bounds", "update_kind", "granularity", "chain", "hop_keys", "aggregator_keys", "group_size", "invited", "minimum_cohort", "chunk_parameters", "deadline_s", "fences", "signature", "head_digest", "applied", "earlier", "state_digest", "bond")
    FEDERATION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    UPDATE_KIND_FIELD_NUMBER: _ClassVar[int]
    GRANULARITY_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    HOP_KEYS_FIELD_NUMBER: _ClassVar[int]
    AGGREGATOR_KEYS_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    INVITED_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_COHORT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    FENCES_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIGEST_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BOND_FIELD_NUMBER: _ClassVar[int]
    federation_digest: bytes
    round: int
    attempt: int
    model_digest: bytes
    schema_digest: bytes
    schema: _schema_pb2.Schema
    plan: _plan_pb2.Plan
    bounds: _containers.RepeatedScalarFieldContainer[float]
    update_kind: UpdateKind
    granularity: Granularity
    chain: _containers.RepeatedScalarFieldContainer[str]
    hop_keys: _containers.RepeatedCompositeFieldContainer[RoundKey]
    aggregator_keys: _containers.RepeatedCompositeFieldContainer[RoundKey]
    group_size: int
    invited: _containers.RepeatedScalarFieldContainer[str]
    minimum_cohort: int
    chunk_parameters: int
    deadline_s: int
    fences: _containers.RepeatedCompositeFieldContainer[Fence]
    signature: bytes
    head_digest: bytes
    applied: int
    earlier: _containers.RepeatedScalarFieldContainer[bytes]
    state_digest: bytes
    bond: Bond
    def __init__(self, federation_digest: _Optional[bytes] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., model_digest: _Optional[bytes] = ..., schema_digest: _Optional[bytes] = ..., schema: _Optional[_Union[_schema_pb2.Schema, _Mapping]] = ..., plan: _Optional[_Union[_plan_pb2.Plan, _Mapping]] = ..., bounds: _Optional[_Iterable[float]] = ..., update_kind: _Optional[_Union[UpdateKind, str]] = ..., granularity: _Optional[_Union[Granularity, str]] = ..., chain: _Optional[_Iterable[str]] = ..., hop_keys: _Optional[_Iterable[_Union[RoundKey, _Mapping]]] = ..., aggregator_keys: _Optional[_Iterable[_Union[RoundKey, _Mapping]]] = ..., group_size: _Optional[int] = ..., invited: _Optional[_Iterable[str]] = ..., minimum_cohort: _Optional[int] = ..., chunk_parameters: _Optional[int] = ..., deadline_s: _Optional[int] = ..., fences: _Optional[_Iterable[_Union[Fence, _Mapping]]] = ..., signature: _Optional[bytes] = ..., head_digest: _Optional[bytes] = ..., applied: _Optional[int] = ..., earlier: _Optional[_Iterable[bytes]] = ..., state_digest: _Optional[bytes] = ..., bond: _Optional[_Union[Bond, _Mapping]] = ...) -> None: ...
