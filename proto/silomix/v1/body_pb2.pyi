from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Evidence(_message.Message):
    __slots__ = ("manifest_digest", "recipient", "silo", "header_digest", "private_key")
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RECIPIENT_FIELD_NUMBER: _ClassVar[int]
    SILO_FIELD_NUMBER: _ClassVar[int]
    HEADER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_KEY_FIELD_NUMBER: _ClassVar[int]
    manifest_digest: bytes
    recipient: str
    silo: str
    header_digest: bytes
    private_key: bytes
    def __init__(self, manifest_digest: _Optional[bytes] = ..., recipient: _Optional[str] = ..., silo: _Optional[str] = ..., header_digest: _Optional[bytes] = ..., private_key: _Optional[bytes] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("header", "chunk", "trailer")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    TRAILER_FIELD_NUMBER: _ClassVar[int]
    header: Header
    chunk: Chunk
    trailer: Trailer
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., trailer: _Optional[_Union[Trailer, _Mapping]] = ...) -> None: ...

class SealedSeed(_message.Message):
    __slots__ = ("recipient", "sealed", "commitment")
    RECIPIENT_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    recipient: str
    sealed: bytes
    commitment: bytes
    def __init__(self, recipient: _Optional[str] = ..., sealed: _Optional[bytes] = ..., commitment: _Optional[bytes] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("silo", "manifest_digest", "seeds", "chunks", "signature", "coin_commitment")
    SILO_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    COIN_COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    silo: str
    manifest_digest: bytes
    seeds: _containers.RepeatedCompositeFieldContainer[SealedSeed]
    chunks: int
    signature: bytes
    coin_commitment: bytes
    def __init__(self, silo: _Optional[str] = ..., manifest_digest: _Optional[bytes] = ..., seeds: _Optional[_Iterable[_Union[SealedSeed, _Mapping]]] = ..., chunks: _Optional[int] = ..., signature: _Optional[bytes] = ..., coin_commitment: _Optional[bytes] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("index", "first_parameter", "planes")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_PARAMETER_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    index: int
    first_parameter: int
    planes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, index: _Optional[int] = ..., first_parameter: _Optional[int] = ..., planes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Trailer(_message.Message):
    __slots__ = ("root", "signature")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    signature: bytes
    def __init__(self, root: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("silo", "manifest_digest", "root", "hop", "signature")
    SILO_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    HOP_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    silo: str
    manifest_digest: bytes
    root: bytes
    hop: str
    signature: bytes
    def __init__(self, silo: _Optional[str] = ..., manifest_digest: _Optional[bytes] = ..., root: _Optional[bytes] = ..., hop: _Optional[str] = ..., signature: _Optional[bytes] = ...) -> None: ...
