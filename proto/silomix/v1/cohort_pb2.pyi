from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

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
