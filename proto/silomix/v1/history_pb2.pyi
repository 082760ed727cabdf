from silomix.v1 import body_pb2 as _body_pb2
from silomix.v1 import check_pb2 as _check_pb2
from silomix.v1 import cohort_pb2 as _cohort_pb2
from silomix.v1 import manifest_pb2 as _manifest_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Signature(_message.Message):
    __slots__ = ("name", "signature")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    name: str
    signature: bytes
    def __init__(self, name: _Optional[str] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Trail(_message.Message):
    __slots__ = ("hop", "cohort_digest", "grouping_seal", "root_in", "root_out", "pad_digest", "signature")
    HOP_FIELD_NUMBER: _ClassVar[int]
    COHORT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    GROUPING_SEAL_FIELD_NUMBER: _ClassVar[int]
    ROOT_IN_FIELD_NUMBER: _ClassVar[int]
    ROOT_OUT_FIELD_NUMBER: _ClassVar[int]
    PAD_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    hop: str
    cohort_digest: bytes
    grouping_seal: bytes
    root_in: bytes
    root_out: bytes
    pad_digest: bytes
    signature: bytes
    def __init__(self, hop: _Optional[str] = ..., cohort_digest: _Optional[bytes] = ..., grouping_seal: _Optional[bytes] = ..., root_in: _Optional[bytes] = ..., root_out: _Optional[bytes] = ..., pad_digest: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Attempted(_message.Message):
    __slots__ = ("attempt", "manifest_digest", "chain", "agreed", "silos", "signatures", "culprit", "evidence_digest")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    AGREED_FIELD_NUMBER: _ClassVar[int]
    SILOS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    CULPRIT_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    manifest_digest: bytes
    chain: _containers.RepeatedScalarFieldContainer[str]
    agreed: bytes
    silos: _containers.RepeatedScalarFieldContainer[str]
    signatures: _containers.RepeatedCompositeFieldContainer[Signature]
    culprit: str
    evidence_digest: bytes
    def __init__(self, attempt: _Optional[int] = ..., manifest_digest: _Optional[bytes] = ..., chain: _Optional[_Iterable[str]] = ..., agreed: _Optional[bytes] = ..., silos: _Optional[_Iterable[str]] = ..., signatures: _Optional[_Iterable[_Union[Signature, _Mapping]]] = ..., culprit: _Optional[str] = ..., evidence_digest: _Optional[bytes] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("federation_digest", "round", "outcome", "attempts", "root", "model_before", "model_after", "state_before", "state_after", "previous", "signature", "countersignatures", "next_digest")
    FEDERATION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    MODEL_BEFORE_FIELD_NUMBER: _ClassVar[int]
    MODEL_AFTER_FIELD_NUMBER: _ClassVar[int]
    STATE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    STATE_AFTER_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    COUNTERSIGNATURES_FIELD_NUMBER: _ClassVar[int]
    NEXT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    federation_digest: bytes
    round: int
    outcome: str
    attempts: _containers.RepeatedCompositeFieldContainer[Attempted]
    root: bytes
    model_before: bytes
    model_after: bytes
    state_before: bytes
    state_after: bytes
    previous: bytes
    signature: bytes
    countersignatures: _containers.RepeatedCompositeFieldContainer[Signature]
    next_digest: bytes
    def __init__(self, federation_digest: _Optional[bytes] = ..., round: _Optional[int] = ..., outcome: _Optional[str] = ..., attempts: _Optional[_Iterable[_Union[Attempted, _Mapping]]] = ..., root: _Optional[bytes] = ..., model_before: _Optional[bytes] = ..., model_after: _Optional[bytes] = ..., state_before: _Optional[bytes] = ..., state_after: _Optional[bytes] = ..., previous: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., countersignatures: _Optional[_Iterable[_Union[Signature, _Mapping]]] = ..., next_digest: _Optional[bytes] = ...) -> None: ...

class Records(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[Record]
    def __init__(self, records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ...) -> None: ...

class Transcript(_message.Message):
    __slots__ = ("manifest", "cohort", "headers", "trails", "pads", "seeds", "signatures", "bodies", "check")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TRAILS_FIELD_NUMBER: _ClassVar[int]
    PADS_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    manifest: _manifest_pb2.Manifest
    cohort: _cohort_pb2.Cohort
    headers: _containers.RepeatedCompositeFieldContainer[_body_pb2.Header]
    trails: _containers.RepeatedCompositeFieldContainer[Trail]
    pads: _containers.RepeatedScalarFieldContainer[bytes]
    seeds: _containers.RepeatedScalarFieldContainer[bytes]
    signatures: _containers.RepeatedCompositeFieldContainer[Signature]
    bodies: _containers.RepeatedCompositeFieldContainer[_check_pb2.SignedRoot]
    check: _check_pb2.CheckTranscript
    def __init__(self, manifest: _Optional[_Union[_manifest_pb2.Manifest, _Mapping]] = ..., cohort: _Optional[_Union[_cohort_pb2.Cohort, _Mapping]] = ..., headers: _Optional[_Iterable[_Union[_body_pb2.Header, _Mapping]]] = ..., trails: _Optional[_Iterable[_Union[Trail, _Mapping]]] = ..., pads: _Optional[_Iterable[bytes]] = ..., seeds: _Optional[_Iterable[bytes]] = ..., signatures: _Optional[_Iterable[_Union[Signature, _Mapping]]] = ..., bodies: _Optional[_Iterable[_Union[_check_pb2.SignedRoot, _Mapping]]] = ..., check: _Optional[_Union[_check_pb2.CheckTranscript, _Mapping]] = ...) -> None: ...
