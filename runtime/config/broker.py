"""The files of a broker for one federation: a certificate of the federation's CA, and Mosquitto's configuration.

Nodes show the broker the certificates that they have; the broker lets each write about itself alone. That keeps the
topics tidy. No node relies on it: what comes from a broker is a hint, whoever wrote it.
"""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from silomix.runtime.config.authority import CertificateAuthority, private_pem
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.store.files import PRIVATE, PUBLIC, write_atomically
from silomix.runtime.store.home import ANCHOR_FILE, CERTIFICATE_FILE, CERTIFICATE_KEY_FILE

DIRECTORY = "broker"
CONFIG = """\
# Run it in this directory: mosquitto -c mosquitto.conf
listener {port}
cafile {anchor}
certfile {certificate}
keyfile {key}
require_certificate true
use_identity_as_username true
allow_anonymous false
acl_file acl
# Nodes tell everything again when they come back: nothing need be kept, and nothing large is ever sent.
persistence false
max_packet_size 16384
"""
ACL = """\
# A node writes about itself alone, the aggregator about rounds; every member may read.
pattern write {base}/presence/%u
pattern write {base}/refusals/%u
pattern read {base}/#

user {aggregator}
topic write {base}/round
"""


def write_broker(directory: Path, federation: Federation, host: str, port: int) -> Path:
    """Write what a broker needs, beside the nodes of a federation whose CA is still here; return where."""
    home = directory / DIRECTORY
    home.mkdir(mode=0o700)
    private = ec.generate_private_key(ec.SECP256R1())
    certificate = CertificateAuthority.load(directory).issue(DIRECTORY, private.public_key(), [host])
    files = {
        CERTIFICATE_KEY_FILE: (private_pem(private), PRIVATE),
        CERTIFICATE_FILE: (certificate, PUBLIC),
        ANCHOR_FILE: (federation.anchor, PUBLIC),
        "mosquitto.conf": (
            CONFIG.format(
                port=port, anchor=ANCHOR_FILE, certificate=CERTIFICATE_FILE, key=CERTIFICATE_KEY_FILE
            ).encode(),
            PUBLIC,
        ),
        "acl": (
            ACL.format(base=f"silomix/{federation.name}", aggregator=federation.aggregator.name).encode(),
            PRIVATE,  # newer brokers refuse one that others can read
        ),
    }
    for name, (data, mode) in files.items():
        write_atomically(home / name, data, mode=mode)
    return home
