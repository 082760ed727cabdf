"""The keys that exist: of the federation file, and of a node's own.

A file is read against these tables, and written and explained from them; a key that is not here is a typing error.
"""

from collections.abc import Mapping
from enum import StrEnum

from silomix.runtime.config.kinds import ADDRESS, FLAG, NAME, NAMES, PATH, PUBLIC_KEY, TABLE, TABLES, WORDS, Key, Role
from silomix.runtime.core.policy import KEYS
from silomix.runtime.core.values import OPTIONS, one_of, text, whole
from silomix.runtime.store.home import IDENTITY_FILE, KEPT_MODELS, KEPT_ROUNDS, STATE_DIRECTORY

DIGEST = text("64 hex digits of 0-9 and a-f", "(?:[0-9a-f]{64})?")


class LogFormat(StrEnum):
    """Whom the log is for: a person at a terminal, or a collector."""

    CONSOLE = "console"
    JSON = "json"


FEDERATION_KEYS: Mapping[str, Key] = {
    "name": Key(NAME, "Name of the federation.", required=True),
    "tls": Key(TABLE, "What nodes trust each other's certificates by.", required=True),
    "policy": Key(TABLE, "What the owners agreed on.", required=True),
    "aggregator": Key(TABLE, "Announces rounds and decodes sums.", required=True),
    "shufflers": Key(TABLES, "The pool of hops, in the order in which bodies pass them.", required=True),
    "silos": Key(TABLES, "The roster: who may train.", required=True),
    "owners": Key(TABLES, "Who has to agree to this file.", required=True),
    "epoch": Key(whole(1, 1_000_000), "The number of this file among those of the federation.", default=1),
    "genesis": Key(DIGEST, "Digest of the federation's first file, in every later one.", default=""),
    "predecessor": Key(DIGEST, "Digest of the file before this one, in every later one.", default=""),
    "owners_quorum": Key(
        whole(0, 10_000),
        "Owners who have to sign the next file; 0 for a majority. The first is signed by all.",
        default=0,
    ),
}

TLS_KEYS: Mapping[str, Key] = {
    "anchor": Key(PATH, "Certificates of the CAs that vouch for nodes, PEM. Its bytes are part of the digest."),
    "pinned": Key(FLAG, "true if each node's own certificate is pinned, in a file NAME.pin beside this one.", False),
    "insecure": Key(FLAG, "true for a federation without TLS: for trials on one machine only.", default=False),
}

MEMBER_KEYS: Mapping[str, Key] = {
    "name": Key(NAME, "Also the common name of the node's certificate.", required=True),
    "key": Key(PUBLIC_KEY, "Signs what the node says.", required=True),
    "owner": Key(NAME, "Whose it is: the name of one of the [[owners]].", required=True),
    "address": Key(ADDRESS, "Where others reach the node.", required=True),
}

OWNER_KEYS: Mapping[str, Key] = {
    "name": Key(NAME, "What others call the owner.", required=True),
    "key": Key(PUBLIC_KEY, "Signs agreement to the federation file.", required=True),
}

SILO_KEYS: Mapping[str, Key] = {name: key for name, key in MEMBER_KEYS.items() if name != "address"}

POLICY_KEYS: Mapping[str, Key] = {name: Key(key.kind, key.what, key.default) for name, key in KEYS.items()}

_SERVERS = (Role.AGGREGATOR, Role.SHUFFLER)

NODE_KEYS: Mapping[str, Key] = {
    "role": Key(one_of(Role), "What this node is.", required=True),
    "name": Key(NAME, "Its name in the federation file.", required=True),
    "federation": Key(PATH, "This node's own copy of the federation file.", required=True),
    "agreement": Key(
        PATH, "Directory of the owners' signatures and the nodes' pins, if not that of the federation file."
    ),
    "directory": Key(
        PATH, "Where it keeps its state: a disk that survives restarts and is never backed up.", STATE_DIRECTORY
    ),
    "identity": Key(PATH, "Ed25519 private key, PEM, mode 600.", IDENTITY_FILE),
    "identity_command": Key(
        WORDS,
        "Command that signs in place of the file: it gets a digest on its standard input, 64 hex digits, and writes "
        "the signature to its standard output, 128.",
        default=(),
    ),
    "identity_token": Key(
        text("a PKCS#11 URI with token, object, module-path and pin-source", r"(pkcs11:[!-~]+)?"),
        "PKCS#11 token that signs in place of the file: "
        "pkcs11:token=NAME;object=LABEL?module-path=FILE&pin-source=FILE",
        default="",
    ),
    "certificate": Key(PATH, "TLS certificate, PEM, with the node's name as its common name and as a DNS name."),
    "key": Key(PATH, "Private key of the certificate, PEM, mode 600."),
    "insecure": Key(FLAG, "true to go without TLS, if the federation file says so too.", default=False),
    "listen": Key(ADDRESS, "Where to listen, if that is not the address on the roster.", roles=_SERVERS),
    "metrics_port": Key(whole(0, 65535), "Port of the Prometheus metrics; 0 for none.", default=0),
    "metrics_host": Key(
        text("an address of this host"), "Address of the metrics; 0.0.0.0 for all networks.", default="127.0.0.1"
    ),
    "metrics_training": Key(
        FLAG,
        "true to show this silo's loss, accuracy and sample counts on its own metrics port. They help an attacker.",
        default=False,
        roles=(Role.SILO,),
    ),
    "before_round": Key(
        WORDS,
        "Command that is asked before each round whether this silo takes part: exit code 0 says yes. It gets the round "
        "as JSON on its standard input.",
        default=(),
        roles=(Role.SILO,),
    ),
    "required_hops": Key(
        NAMES, "Shufflers without which this silo does not submit: its own.", default=(), roles=(Role.SILO,)
    ),
    "capture": Key(PATH, "Where to record what this node sees, for an audit. Attack material."),
    "traces": Key(
        text("http://HOST:PORT or https://HOST:PORT", r"https?://[A-Za-z0-9.\[\]:-]+:[0-9]+"),
        "OpenTelemetry collector (OTLP over gRPC) that hears how long each phase of a round took. Empty for none.",
        default="",
    ),
    "log": Key(one_of(LogFormat), "For a person or for a collector.", default=LogFormat.CONSOLE),
    "initial_model": Key(PATH, "Model to begin with, safetensors.", roles=(Role.AGGREGATOR,)),
    "evaluate": Key(
        FLAG,
        "true to measure each global model here. The task must be installed, and has a test set of its own.",
        default=False,
        roles=(Role.AGGREGATOR,),
    ),
    "keep_models": Key(
        whole(KEPT_ROUNDS + 1, 1_000_000, zero=True),
        "Global models that stay on the disk: so many of the newest, and the best; 0 for all.",
        default=KEPT_MODELS,
        roles=(Role.AGGREGATOR,),
    ),
    "keep_updates": Key(
        FLAG,
        "true to keep this silo's updates in clear beside its state, to compare with what came of them. For tests.",
        default=False,
        roles=(Role.SILO,),
    ),
    "linger": Key(
        FLAG,
        "true to stay when all rounds are done, until told to stop: for schedulers that start again whatever ends.",
        default=False,
        roles=(Role.AGGREGATOR, Role.SILO),
    ),
    "task_options": Key(OPTIONS, "Arguments of the task for this silo alone.", default={}, roles=(Role.SILO,)),
    "mqtt": Key(TABLE, "MQTT broker that hears of presence, rounds and refusals. Without this table, nobody does."),
}

MQTT_KEYS: Mapping[str, Key] = {
    "host": Key(text("a host name or an address", r"[A-Za-z0-9.:-]+"), "Where the broker is.", required=True),
    "port": Key(whole(1, 65535), "Its port.", default=8883),
    "tls": Key(FLAG, "false to speak in clear, as to a broker on this host.", default=True),
    "anchor": Key(PATH, "Certificates that vouch for the broker, PEM, if those of the federation do not."),
    "certificate": Key(PATH, "Certificate to show to the broker, PEM, if not this node's own."),
    "key": Key(PATH, "Private key of that certificate, PEM, mode 600."),
    "username": Key(text("a name", r"[^\x00-\x1f]*"), "Name to log in with, if certificates do not do.", default=""),
    "password_file": Key(PATH, "File with the password, mode 600."),
}

PLACES = {
    **dict.fromkeys(TLS_KEYS, "[tls]"),
    **dict.fromkeys(POLICY_KEYS, "[policy]"),
    "address": "[aggregator] or [[shufflers]]",
    "owner": "[aggregator], [[shufflers]] or [[silos]]",
}
"""Where a key of the federation file belongs: TOML puts a key under whichever header stands above it."""
