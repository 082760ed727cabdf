from silomix.v1 import history_pb2 as _history_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MeetRequest(_message.Message):
    __slots__ = ("greeting",)
    GREETING_FIELD_NUMBER: _ClassVar[int]
    greeting: Greeting
    def __init__(self, greeting: _Optional[_Union[Greeting, _Mapping]] = ...) -> None: ...

class MeetResponse(_message.Message):
    __slots__ = ("greeting",)
    GREETING_FIELD_NUMBER: _ClassVar[int]
    greeting: Greeting
    def __init__(self, greeting: _Optional[_Union[Greeting, _Mapping]] = ...) -> None: ...

class Greeting(_message.Message):
    __slots__ = ("protocol", "version", "federation_digest", "pins", "epochs", "ready_digest", "lives")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    READY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LIVES_FIELD_NUMBER: _ClassVar[int]
    protocol: str
    version: str
    federation_digest: bytes
    pins: _containers.RepeatedCompositeFieldContainer[Pin]
    epochs: _containers.RepeatedCompositeFieldContainer[Epoch]
    ready_digest: bytes
    lives: _containers.RepeatedCompositeFieldContainer[Life]
    def __init__(self, protocol: _Optional[str] = ..., version: _Optional[str] = ..., federation_digest: _Optional[bytes] = ..., pins: _Optional[_Iterable[_Union[Pin, _Mapping]]] = ..., epochs: _Optional[_Iterable[_Union[Epoch, _Mapping]]] = ..., ready_digest: _Optional[bytes] = ..., lives: _Optional[_Iterable[_Union[Life, _Mapping]]] = ...) -> None: ...

class Life(_message.Message):
    __slots__ = ("hop", "life", "signature")
    HOP_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    hop: str
    life: bytes
    signature: bytes
    def __init__(self, hop: _Optional[str] = ..., life: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Epoch(_message.Message):
    __slots__ = ("file", "accepted", "pins")
    FILE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    file: bytes
    accepted: _containers.RepeatedCompositeFieldContainer[_history_pb2.Signature]
    pins: _containers.RepeatedCompositeFieldContainer[Pin]
    def __init__(self, file: _Optional[bytes] = ..., accepted: _Optional[_Iterable[_Union[_history_pb2.Signature, _Mapping]]] = ..., pins: _Optional[_Iterable[_Union[Pin, _Mapping]]] = ...) -> None: ...

class Pin(_message.Message):
    __slots__ = ("name", "counter", "current", "next", "signature")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    name: str
    counter: int
    current: bytes
    next: bytes
    signature: bytes
    def __init__(self, name: _Optional[str] = ..., counter: _Optional[int] = ..., current: _Optional[bytes] = ..., next: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...
