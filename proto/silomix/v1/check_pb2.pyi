from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SignedRoot(_message.Message):
    __slots__ = ("root", "signature")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    signature: bytes
    def __init__(self, root: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Toss(_message.Message):
    __slots__ = ("silo", "share", "ballot", "signature")
    SILO_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    silo: str
    share: bytes
    ballot: bytes
    signature: bytes
    def __init__(self, silo: _Optional[str] = ..., share: _Optional[bytes] = ..., ballot: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Statement(_message.Message):
    __slots__ = ("name", "context", "coin", "scalars", "signature", "residues", "commitments")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    COIN_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    RESIDUES_FIELD_NUMBER: _ClassVar[int]
    COMMITMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    context: bytes
    coin: bytes
    scalars: _containers.RepeatedScalarFieldContainer[bytes]
    signature: bytes
    residues: _containers.RepeatedScalarFieldContainer[bytes]
    commitments: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, name: _Optional[str] = ..., context: _Optional[bytes] = ..., coin: _Optional[bytes] = ..., scalars: _Optional[_Iterable[bytes]] = ..., signature: _Optional[bytes] = ..., residues: _Optional[_Iterable[bytes]] = ..., commitments: _Optional[_Iterable[bytes]] = ...) -> None: ...

class TrapProof(_message.Message):
    __slots__ = ("hop", "check_digest", "proofs", "signature")
    HOP_FIELD_NUMBER: _ClassVar[int]
    CHECK_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PROOFS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    hop: str
    check_digest: bytes
    proofs: bytes
    signature: bytes
    def __init__(self, hop: _Optional[str] = ..., check_digest: _Optional[bytes] = ..., proofs: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class CheckTranscript(_message.Message):
    __slots__ = ("tosses", "statements", "proofs")
    TOSSES_FIELD_NUMBER: _ClassVar[int]
    STATEMENTS_FIELD_NUMBER: _ClassVar[int]
    PROOFS_FIELD_NUMBER: _ClassVar[int]
    tosses: _containers.RepeatedCompositeFieldContainer[Toss]
    statements: _containers.RepeatedCompositeFieldContainer[Statement]
    proofs: _containers.RepeatedCompositeFieldContainer[TrapProof]
    def __init__(self, tosses: _Optional[_Iterable[_Union[Toss, _Mapping]]] = ..., statements: _Optional[_Iterable[_Union[Statement, _Mapping]]] = ..., proofs: _Optional[_Iterable[_Union[TrapProof, _Mapping]]] = ...) -> None: ...

class Defence(_message.Message):
    __slots__ = ("node", "check_digest", "kind", "name", "private_key", "root", "signature")
    NODE_FIELD_NUMBER: _ClassVar[int]
    CHECK_DIGEST_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_KEY_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    node: str
    check_digest: bytes
    kind: str
    name: str
    private_key: bytes
    root: bytes
    signature: bytes
    def __init__(self, node: _Optional[str] = ..., check_digest: _Optional[bytes] = ..., kind: _Optional[str] = ..., name: _Optional[str] = ..., private_key: _Optional[bytes] = ..., root: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...
