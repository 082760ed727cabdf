from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Encoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCODING_UNSPECIFIED: _ClassVar[Encoding]
    ENCODING_UNARY: _ClassVar[Encoding]
    ENCODING_FIRST_PRIMES: _ClassVar[Encoding]
    ENCODING_COUNTS: _ClassVar[Encoding]

class Level(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEVEL_UNSPECIFIED: _ClassVar[Level]
    LEVEL_TRUSTED: _ClassVar[Level]
    LEVEL_SEMI_HONEST: _ClassVar[Level]
    LEVEL_MALICIOUS: _ClassVar[Level]

class Quantiser(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    QUANTISER_UNSPECIFIED: _ClassVar[Quantiser]
    QUANTISER_DECIMAL: _ClassVar[Quantiser]
    QUANTISER_INT8: _ClassVar[Quantiser]
ENCODING_UNSPECIFIED: Encoding
ENCODING_UNARY: Encoding
ENCODING_FIRST_PRIMES: Encoding
ENCODING_COUNTS: Encoding
LEVEL_UNSPECIFIED: Level
LEVEL_TRUSTED: Level
LEVEL_SEMI_HONEST: Level
LEVEL_MALICIOUS: Level
QUANTISER_UNSPECIFIED: Quantiser
QUANTISER_DECIMAL: Quantiser
QUANTISER_INT8: Quantiser

class Plan(_message.Message):
    __slots__ = ("n_max", "precision", "encoding", "level", "weight_levels", "headroom", "quantiser", "moduli")
    N_MAX_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_LEVELS_FIELD_NUMBER: _ClassVar[int]
    HEADROOM_FIELD_NUMBER: _ClassVar[int]
    QUANTISER_FIELD_NUMBER: _ClassVar[int]
    MODULI_FIELD_NUMBER: _ClassVar[int]
    n_max: int
    precision: int
    encoding: Encoding
    level: Level
    weight_levels: int
    headroom: int
    quantiser: Quantiser
    moduli: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, n_max: _Optional[int] = ..., precision: _Optional[int] = ..., encoding: _Optional[_Union[Encoding, str]] = ..., level: _Optional[_Union[Level, str]] = ..., weight_levels: _Optional[int] = ..., headroom: _Optional[int] = ..., quantiser: _Optional[_Union[Quantiser, str]] = ..., moduli: _Optional[_Iterable[int]] = ...) -> None: ...
