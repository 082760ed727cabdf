from silomix.v1 import body_pb2 as _body_pb2
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

class Subject(_message.Message):
    __slots__ = ("manifest_digest", "model_digest", "cohort", "headers", "bodies", "trails")
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    TRAILS_FIELD_NUMBER: _ClassVar[int]
    manifest_digest: bytes
    model_digest: bytes
    cohort: _cohort_pb2.Cohort
    headers: _containers.RepeatedCompositeFieldContainer[_body_pb2.Header]
    bodies: _containers.RepeatedCompositeFieldContainer[_check_pb2.SignedRoot]
    trails: _containers.RepeatedCompositeFieldContainer[_history_pb2.Trail]
    def __init__(self, manifest_digest: _Optional[bytes] = ..., model_digest: _Optional[bytes] = ..., cohort: _Optional[_Union[_cohort_pb2.Cohort, _Mapping]] = ..., headers: _Optional[_Iterable[_Union[_body_pb2.Header, _Mapping]]] = ..., bodies: _Optional[_Iterable[_Union[_check_pb2.SignedRoot, _Mapping]]] = ..., trails: _Optional[_Iterable[_Union[_history_pb2.Trail, _Mapping]]] = ...) -> None: ...

class Case(_message.Message):
    __slots__ = ("charge", "manifest", "subject", "toss", "check", "defence", "hop", "pad", "trails")
    CHARGE_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    TOSS_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    DEFENCE_FIELD_NUMBER: _ClassVar[int]
    HOP_FIELD_NUMBER: _ClassVar[int]
    PAD_FIELD_NUMBER: _ClassVar[int]
    TRAILS_FIELD_NUMBER: _ClassVar[int]
    charge: str
    manifest: _manifest_pb2.Manifest
    subject: Subject
    toss: _check_pb2.Toss
    check: _check_pb2.CheckTranscript
    defence: _check_pb2.Defence
    hop: str
    pad: bytes
    trails: _containers.RepeatedCompositeFieldContainer[_history_pb2.Trail]
    def __init__(self, charge: _Optional[str] = ..., manifest: _Optional[_Union[_manifest_pb2.Manifest, _Mapping]] = ..., subject: _Optional[_Union[Subject, _Mapping]] = ..., toss: _Optional[_Union[_check_pb2.Toss, _Mapping]] = ..., check: _Optional[_Union[_check_pb2.CheckTranscript, _Mapping]] = ..., defence: _Optional[_Union[_check_pb2.Defence, _Mapping]] = ..., hop: _Optional[str] = ..., pad: _Optional[bytes] = ..., trails: _Optional[_Iterable[_Union[_history_pb2.Trail, _Mapping]]] = ...) -> None: ...
