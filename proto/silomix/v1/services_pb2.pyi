from silomix.v1 import body_pb2 as _body_pb2
from silomix.v1 import manifest_pb2 as _manifest_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchRequest(_message.Message):
    __slots__ = ("federation_digest",)
    FEDERATION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    federation_digest: bytes
    def __init__(self, federation_digest: _Optional[bytes] = ...) -> None: ...

class Announcement(_message.Message):
    __slots__ = ("manifest", "finished")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    manifest: _manifest_pb2.Manifest
    finished: Finished
    def __init__(self, manifest: _Optional[_Union[_manifest_pb2.Manifest, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model_digest",)
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    model_digest: bytes
    def __init__(self, model_digest: _Optional[bytes] = ...) -> None: ...

class ModelPart(_message.Message):
    __slots__ = ("total_bytes", "data")
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    total_bytes: int
    data: bytes
    def __init__(self, total_bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class PrepareRequest(_message.Message):
    __slots__ = ("federation_digest", "round", "silos", "known_released", "attempt")
    FEDERATION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SILOS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_RELEASED_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    federation_digest: bytes
    round: int
    silos: _containers.RepeatedScalarFieldContainer[str]
    known_released: int
    attempt: int
    def __init__(self, federation_digest: _Optional[bytes] = ..., round: _Optional[int] = ..., silos: _Optional[_Iterable[str]] = ..., known_released: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class PrepareResponse(_message.Message):
    __slots__ = ("keys", "last_released")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LAST_RELEASED_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[_manifest_pb2.RoundKey]
    last_released: int
    def __init__(self, keys: _Optional[_Iterable[_Union[_manifest_pb2.RoundKey, _Mapping]]] = ..., last_released: _Optional[int] = ...) -> None: ...

class OpenRequest(_message.Message):
    __slots__ = ("manifest",)
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    manifest: _manifest_pb2.Manifest
    def __init__(self, manifest: _Optional[_Union[_manifest_pb2.Manifest, _Mapping]] = ...) -> None: ...

class OpenResponse(_message.Message):
    __slots__ = ("manifest_digest",)
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    manifest_digest: bytes
    def __init__(self, manifest_digest: _Optional[bytes] = ...) -> None: ...

class RelayFrame(_message.Message):
    __slots__ = ("open", "header", "cohort", "chunk", "trailer", "grouping", "groups")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    TRAILER_FIELD_NUMBER: _ClassVar[int]
    GROUPING_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    open: RelayOpen
    header: _body_pb2.Header
    cohort: Cohort
    chunk: _body_pb2.Chunk
    trailer: RelayTrailer
    grouping: Grouping
    groups: Groups
    def __init__(self, open: _Optional[_Union[RelayOpen, _Mapping]] = ..., header: _Optional[_Union[_body_pb2.Header, _Mapping]] = ..., cohort: _Optional[_Union[Cohort, _Mapping]] = ..., chunk: _Optional[_Union[_body_pb2.Chunk, _Mapping]] = ..., trailer: _Optional[_Union[RelayTrailer, _Mapping]] = ..., grouping: _Optional[_Union[Grouping, _Mapping]] = ..., groups: _Optional[_Union[Groups, _Mapping]] = ...) -> None: ...

class RelayOpen(_message.Message):
    __slots__ = ("hop", "manifest_digest")
    HOP_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    hop: str
    manifest_digest: bytes
    def __init__(self, hop: _Optional[str] = ..., manifest_digest: _Optional[bytes] = ...) -> None: ...

class Participant(_message.Message):
    __slots__ = ("silo", "header_digest")
    SILO_FIELD_NUMBER: _ClassVar[int]
    HEADER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    silo: str
    header_digest: bytes
    def __init__(self, silo: _Optional[str] = ..., header_digest: _Optional[bytes] = ...) -> None: ...

class Cohort(_message.Message):
    __slots__ = ("manifest_digest", "participants", "signature")
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    manifest_digest: bytes
    participants: _containers.RepeatedCompositeFieldContainer[Participant]
    signature: bytes
    def __init__(self, manifest_digest: _Optional[bytes] = ..., participants: _Optional[_Iterable[_Union[Participant, _Mapping]]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Grouping(_message.Message):
    __slots__ = ("groups", "signature")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedScalarFieldContainer[int]
    signature: bytes
    def __init__(self, groups: _Optional[_Iterable[int]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("size", "seeds")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    size: int
    seeds: _containers.RepeatedCompositeFieldContainer[_body_pb2.SealedSeed]
    def __init__(self, size: _Optional[int] = ..., seeds: _Optional[_Iterable[_Union[_body_pb2.SealedSeed, _Mapping]]] = ...) -> None: ...

class Groups(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    def __init__(self, groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ...) -> None: ...

class RelayTrailer(_message.Message):
    __slots__ = ("root", "signature")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    signature: bytes
    def __init__(self, root: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("name", "root", "signature")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    name: str
    root: bytes
    signature: bytes
    def __init__(self, name: _Optional[str] = ..., root: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("federation", "round", "attempt", "rounds", "phase", "present", "cohort", "hops", "history")
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    HOPS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    federation: str
    round: int
    attempt: int
    rounds: int
    phase: str
    present: _containers.RepeatedScalarFieldContainer[str]
    cohort: int
    hops: _containers.RepeatedCompositeFieldContainer[HopStatus]
    history: _containers.RepeatedCompositeFieldContainer[RoundStatus]
    def __init__(self, federation: _Optional[str] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., rounds: _Optional[int] = ..., phase: _Optional[str] = ..., present: _Optional[_Iterable[str]] = ..., cohort: _Optional[int] = ..., hops: _Optional[_Iterable[_Union[HopStatus, _Mapping]]] = ..., history: _Optional[_Iterable[_Union[RoundStatus, _Mapping]]] = ...) -> None: ...

class HopStatus(_message.Message):
    __slots__ = ("name", "state", "trouble")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    trouble: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., trouble: _Optional[str] = ...) -> None: ...

class RoundStatus(_message.Message):
    __slots__ = ("round", "attempts", "cohort", "seconds", "bits_per_parameter", "score")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BITS_PER_PARAMETER_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempts: int
    cohort: int
    seconds: float
    bits_per_parameter: float
    score: float
    def __init__(self, round: _Optional[int] = ..., attempts: _Optional[int] = ..., cohort: _Optional[int] = ..., seconds: _Optional[float] = ..., bits_per_parameter: _Optional[float] = ..., score: _Optional[float] = ...) -> None: ...
