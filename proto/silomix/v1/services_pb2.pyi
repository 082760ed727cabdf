from silomix.v1 import body_pb2 as _body_pb2
from silomix.v1 import case_pb2 as _case_pb2
from silomix.v1 import check_pb2 as _check_pb2
from silomix.v1 import cohort_pb2 as _cohort_pb2
from silomix.v1 import history_pb2 as _history_pb2
from silomix.v1 import manifest_pb2 as _manifest_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchRequest(_message.Message):
    __slots__ = ("federation_digest", "records")
    FEDERATION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    federation_digest: bytes
    records: int
    def __init__(self, federation_digest: _Optional[bytes] = ..., records: _Optional[int] = ...) -> None: ...

class Announcement(_message.Message):
    __slots__ = ("manifest", "finished", "records", "wanted", "check", "coin")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    COIN_FIELD_NUMBER: _ClassVar[int]
    manifest: _manifest_pb2.Manifest
    finished: Finished
    records: _history_pb2.Records
    wanted: Wanted
    check: _case_pb2.Subject
    coin: Coin
    def __init__(self, manifest: _Optional[_Union[_manifest_pb2.Manifest, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., records: _Optional[_Union[_history_pb2.Records, _Mapping]] = ..., wanted: _Optional[_Union[Wanted, _Mapping]] = ..., check: _Optional[_Union[_case_pb2.Subject, _Mapping]] = ..., coin: _Optional[_Union[Coin, _Mapping]] = ...) -> None: ...

class Wanted(_message.Message):
    __slots__ = ("model_digest", "state")
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    model_digest: bytes
    state: bool
    def __init__(self, model_digest: _Optional[bytes] = ..., state: _Optional[bool] = ...) -> None: ...

class GivenPart(_message.Message):
    __slots__ = ("what", "data")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    what: Wanted
    data: bytes
    def __init__(self, what: _Optional[_Union[Wanted, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class GiveModelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Coin(_message.Message):
    __slots__ = ("tosses",)
    TOSSES_FIELD_NUMBER: _ClassVar[int]
    tosses: _containers.RepeatedCompositeFieldContainer[_check_pb2.Toss]
    def __init__(self, tosses: _Optional[_Iterable[_Union[_check_pb2.Toss, _Mapping]]] = ...) -> None: ...

class SayRequest(_message.Message):
    __slots__ = ("toss", "statement")
    TOSS_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    toss: _check_pb2.Toss
    statement: _check_pb2.Statement
    def __init__(self, toss: _Optional[_Union[_check_pb2.Toss, _Mapping]] = ..., statement: _Optional[_Union[_check_pb2.Statement, _Mapping]] = ...) -> None: ...

class SayResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Finished(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model_digest", "state")
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    model_digest: bytes
    state: bool
    def __init__(self, model_digest: _Optional[bytes] = ..., state: _Optional[bool] = ...) -> None: ...

class ModelPart(_message.Message):
    __slots__ = ("total_bytes", "data", "computed")
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    total_bytes: int
    data: bytes
    computed: _containers.RepeatedCompositeFieldContainer[_history_pb2.Signature]
    def __init__(self, total_bytes: _Optional[int] = ..., data: _Optional[bytes] = ..., computed: _Optional[_Iterable[_Union[_history_pb2.Signature, _Mapping]]] = ...) -> None: ...

class GetSumRequest(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class SumPart(_message.Message):
    __slots__ = ("transcript", "chunk")
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    transcript: _history_pb2.Transcript
    chunk: _body_pb2.Chunk
    def __init__(self, transcript: _Optional[_Union[_history_pb2.Transcript, _Mapping]] = ..., chunk: _Optional[_Union[_body_pb2.Chunk, _Mapping]] = ...) -> None: ...

class ConfirmRequest(_message.Message):
    __slots__ = ("record_digest", "signature")
    RECORD_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    record_digest: bytes
    signature: bytes
    def __init__(self, record_digest: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class ConfirmResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ShowRequest(_message.Message):
    __slots__ = ("federation_digest", "life", "start", "signature")
    FEDERATION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    federation_digest: bytes
    life: bytes
    start: int
    signature: bytes
    def __init__(self, federation_digest: _Optional[bytes] = ..., life: _Optional[bytes] = ..., start: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...

class ShowResponse(_message.Message):
    __slots__ = ("life", "total", "records", "attempt", "last_released", "told", "signature")
    LIFE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LAST_RELEASED_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    life: bytes
    total: int
    records: _containers.RepeatedCompositeFieldContainer[_history_pb2.Record]
    attempt: int
    last_released: int
    told: _containers.RepeatedCompositeFieldContainer[Told]
    signature: bytes
    def __init__(self, life: _Optional[bytes] = ..., total: _Optional[int] = ..., records: _Optional[_Iterable[_Union[_history_pb2.Record, _Mapping]]] = ..., attempt: _Optional[int] = ..., last_released: _Optional[int] = ..., told: _Optional[_Iterable[_Union[Told, _Mapping]]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Told(_message.Message):
    __slots__ = ("round", "attempt", "model_digest", "bond")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BOND_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    model_digest: bytes
    bond: _manifest_pb2.Bond
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., model_digest: _Optional[bytes] = ..., bond: _Optional[_Union[_manifest_pb2.Bond, _Mapping]] = ...) -> None: ...

class PrepareRequest(_message.Message):
    __slots__ = ("federation_digest", "round", "silos", "known_released", "attempt", "head_digest", "life")
    FEDERATION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SILOS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_RELEASED_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    federation_digest: bytes
    round: int
    silos: _containers.RepeatedScalarFieldContainer[str]
    known_released: int
    attempt: int
    head_digest: bytes
    life: bytes
    def __init__(self, federation_digest: _Optional[bytes] = ..., round: _Optional[int] = ..., silos: _Optional[_Iterable[str]] = ..., known_released: _Optional[int] = ..., attempt: _Optional[int] = ..., head_digest: _Optional[bytes] = ..., life: _Optional[bytes] = ...) -> None: ...

class PrepareResponse(_message.Message):
    __slots__ = ("keys", "last_released")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LAST_RELEASED_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[_manifest_pb2.RoundKey]
    last_released: int
    def __init__(self, keys: _Optional[_Iterable[_Union[_manifest_pb2.RoundKey, _Mapping]]] = ..., last_released: _Optional[int] = ...) -> None: ...

class OpenRequest(_message.Message):
    __slots__ = ("manifest", "head", "life")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    manifest: _manifest_pb2.Manifest
    head: _history_pb2.Record
    life: bytes
    def __init__(self, manifest: _Optional[_Union[_manifest_pb2.Manifest, _Mapping]] = ..., head: _Optional[_Union[_history_pb2.Record, _Mapping]] = ..., life: _Optional[bytes] = ...) -> None: ...

class OpenResponse(_message.Message):
    __slots__ = ("manifest_digest", "closes_s")
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CLOSES_S_FIELD_NUMBER: _ClassVar[int]
    manifest_digest: bytes
    closes_s: float
    def __init__(self, manifest_digest: _Optional[bytes] = ..., closes_s: _Optional[float] = ...) -> None: ...

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
    cohort: _cohort_pb2.Cohort
    chunk: _body_pb2.Chunk
    trailer: RelayTrailer
    grouping: Grouping
    groups: Groups
    def __init__(self, open: _Optional[_Union[RelayOpen, _Mapping]] = ..., header: _Optional[_Union[_body_pb2.Header, _Mapping]] = ..., cohort: _Optional[_Union[_cohort_pb2.Cohort, _Mapping]] = ..., chunk: _Optional[_Union[_body_pb2.Chunk, _Mapping]] = ..., trailer: _Optional[_Union[RelayTrailer, _Mapping]] = ..., grouping: _Optional[_Union[Grouping, _Mapping]] = ..., groups: _Optional[_Union[Groups, _Mapping]] = ...) -> None: ...

class RelayOpen(_message.Message):
    __slots__ = ("hop", "manifest_digest")
    HOP_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    hop: str
    manifest_digest: bytes
    def __init__(self, hop: _Optional[str] = ..., manifest_digest: _Optional[bytes] = ...) -> None: ...

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
    __slots__ = ("trails", "bodies")
    TRAILS_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    trails: _containers.RepeatedCompositeFieldContainer[_history_pb2.Trail]
    bodies: _containers.RepeatedCompositeFieldContainer[_check_pb2.SignedRoot]
    def __init__(self, trails: _Optional[_Iterable[_Union[_history_pb2.Trail, _Mapping]]] = ..., bodies: _Optional[_Iterable[_Union[_check_pb2.SignedRoot, _Mapping]]] = ...) -> None: ...

class AnswerRequest(_message.Message):
    __slots__ = ("manifest_digest", "trails", "bodies", "tosses")
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TRAILS_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    TOSSES_FIELD_NUMBER: _ClassVar[int]
    manifest_digest: bytes
    trails: _containers.RepeatedCompositeFieldContainer[_history_pb2.Trail]
    bodies: _containers.RepeatedCompositeFieldContainer[_check_pb2.SignedRoot]
    tosses: _containers.RepeatedCompositeFieldContainer[_check_pb2.Toss]
    def __init__(self, manifest_digest: _Optional[bytes] = ..., trails: _Optional[_Iterable[_Union[_history_pb2.Trail, _Mapping]]] = ..., bodies: _Optional[_Iterable[_Union[_check_pb2.SignedRoot, _Mapping]]] = ..., tosses: _Optional[_Iterable[_Union[_check_pb2.Toss, _Mapping]]] = ...) -> None: ...

class AnswerResponse(_message.Message):
    __slots__ = ("statement",)
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    statement: _check_pb2.Statement
    def __init__(self, statement: _Optional[_Union[_check_pb2.Statement, _Mapping]] = ...) -> None: ...

class ProveRequest(_message.Message):
    __slots__ = ("manifest_digest", "trails", "bodies", "check")
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TRAILS_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    manifest_digest: bytes
    trails: _containers.RepeatedCompositeFieldContainer[_history_pb2.Trail]
    bodies: _containers.RepeatedCompositeFieldContainer[_check_pb2.SignedRoot]
    check: _check_pb2.CheckTranscript
    def __init__(self, manifest_digest: _Optional[bytes] = ..., trails: _Optional[_Iterable[_Union[_history_pb2.Trail, _Mapping]]] = ..., bodies: _Optional[_Iterable[_Union[_check_pb2.SignedRoot, _Mapping]]] = ..., check: _Optional[_Union[_check_pb2.CheckTranscript, _Mapping]] = ...) -> None: ...

class ProveResponse(_message.Message):
    __slots__ = ("proof", "defence")
    PROOF_FIELD_NUMBER: _ClassVar[int]
    DEFENCE_FIELD_NUMBER: _ClassVar[int]
    proof: _check_pb2.TrapProof
    defence: _check_pb2.Defence
    def __init__(self, proof: _Optional[_Union[_check_pb2.TrapProof, _Mapping]] = ..., defence: _Optional[_Union[_check_pb2.Defence, _Mapping]] = ...) -> None: ...

class DefendRequest(_message.Message):
    __slots__ = ("manifest_digest", "trails", "bodies", "check")
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TRAILS_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    manifest_digest: bytes
    trails: _containers.RepeatedCompositeFieldContainer[_history_pb2.Trail]
    bodies: _containers.RepeatedCompositeFieldContainer[_check_pb2.SignedRoot]
    check: _check_pb2.CheckTranscript
    def __init__(self, manifest_digest: _Optional[bytes] = ..., trails: _Optional[_Iterable[_Union[_history_pb2.Trail, _Mapping]]] = ..., bodies: _Optional[_Iterable[_Union[_check_pb2.SignedRoot, _Mapping]]] = ..., check: _Optional[_Union[_check_pb2.CheckTranscript, _Mapping]] = ...) -> None: ...

class DefencePart(_message.Message):
    __slots__ = ("defence", "chunk")
    DEFENCE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    defence: _check_pb2.Defence
    chunk: _body_pb2.Chunk
    def __init__(self, defence: _Optional[_Union[_check_pb2.Defence, _Mapping]] = ..., chunk: _Optional[_Union[_body_pb2.Chunk, _Mapping]] = ...) -> None: ...

class ConvictRequest(_message.Message):
    __slots__ = ("case",)
    CASE_FIELD_NUMBER: _ClassVar[int]
    case: _case_pb2.Case
    def __init__(self, case: _Optional[_Union[_case_pb2.Case, _Mapping]] = ...) -> None: ...

class ConvictResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AgreeRequest(_message.Message):
    __slots__ = ("manifest_digest", "trails", "life", "check")
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TRAILS_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    manifest_digest: bytes
    trails: _containers.RepeatedCompositeFieldContainer[_history_pb2.Trail]
    life: bytes
    check: _check_pb2.CheckTranscript
    def __init__(self, manifest_digest: _Optional[bytes] = ..., trails: _Optional[_Iterable[_Union[_history_pb2.Trail, _Mapping]]] = ..., life: _Optional[bytes] = ..., check: _Optional[_Union[_check_pb2.CheckTranscript, _Mapping]] = ...) -> None: ...

class AgreeResponse(_message.Message):
    __slots__ = ("signature",)
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    signature: bytes
    def __init__(self, signature: _Optional[bytes] = ...) -> None: ...

class RevealRequest(_message.Message):
    __slots__ = ("manifest_digest", "signatures", "bond", "life")
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    BOND_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    manifest_digest: bytes
    signatures: _containers.RepeatedCompositeFieldContainer[_history_pb2.Signature]
    bond: _manifest_pb2.Bond
    life: bytes
    def __init__(self, manifest_digest: _Optional[bytes] = ..., signatures: _Optional[_Iterable[_Union[_history_pb2.Signature, _Mapping]]] = ..., bond: _Optional[_Union[_manifest_pb2.Bond, _Mapping]] = ..., life: _Optional[bytes] = ...) -> None: ...

class RevealResponse(_message.Message):
    __slots__ = ("pad",)
    PAD_FIELD_NUMBER: _ClassVar[int]
    pad: bytes
    def __init__(self, pad: _Optional[bytes] = ...) -> None: ...

class StoreRequest(_message.Message):
    __slots__ = ("records", "life")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[_history_pb2.Record]
    life: bytes
    def __init__(self, records: _Optional[_Iterable[_Union[_history_pb2.Record, _Mapping]]] = ..., life: _Optional[bytes] = ...) -> None: ...

class StoreResponse(_message.Message):
    __slots__ = ("records", "signature")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    records: int
    signature: bytes
    def __init__(self, records: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...

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
    __slots__ = ("federation", "round", "attempt", "rounds", "phase", "present", "cohort", "hops", "history", "head_digest", "stuck", "protocol", "closes_s", "closes_early")
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    HOPS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIGEST_FIELD_NUMBER: _ClassVar[int]
    STUCK_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CLOSES_S_FIELD_NUMBER: _ClassVar[int]
    CLOSES_EARLY_FIELD_NUMBER: _ClassVar[int]
    federation: str
    round: int
    attempt: int
    rounds: int
    phase: str
    present: _containers.RepeatedScalarFieldContainer[str]
    cohort: int
    hops: _containers.RepeatedCompositeFieldContainer[HopStatus]
    history: _containers.RepeatedCompositeFieldContainer[RoundStatus]
    head_digest: bytes
    stuck: str
    protocol: int
    closes_s: float
    closes_early: bool
    def __init__(self, federation: _Optional[str] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., rounds: _Optional[int] = ..., phase: _Optional[str] = ..., present: _Optional[_Iterable[str]] = ..., cohort: _Optional[int] = ..., hops: _Optional[_Iterable[_Union[HopStatus, _Mapping]]] = ..., history: _Optional[_Iterable[_Union[RoundStatus, _Mapping]]] = ..., head_digest: _Optional[bytes] = ..., stuck: _Optional[str] = ..., protocol: _Optional[int] = ..., closes_s: _Optional[float] = ..., closes_early: _Optional[bool] = ...) -> None: ...

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
