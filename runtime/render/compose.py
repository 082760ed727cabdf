"""A federation on one host as a Compose file: every node a container, with Prometheus, Grafana and Mosquitto.

It is written as text, since YAML's anchors keep ten silos readable and no library writes them well.
"""

from silomix.runtime.config.kinds import Role
from silomix.runtime.render.source import METRICS_PORT, USER, RenderError, Source, installed_version

HEAD = """\
# Written by `silomix render compose`: change the federation or the options, and render again.
#
# A whole federation on one host, with its monitoring. Make the federation and the images first:
#   silomix init deploy/fed {init}
#   docker build -f deploy/Dockerfile --target slim -t {image} .
#   docker build -f deploy/Dockerfile --target train -t {train} .
#   SILOMIX_USER=$(id -u):$(id -g) docker compose -f deploy/compose.yaml up
# Each node has its own directory and can read no other's. Keys are readable by their owner alone, so containers run as
# whoever owns deploy/fed: say who in SILOMIX_USER, or give the directory to {user}.
name: silomix-{name}

x-node: &node
  user: ${{SILOMIX_USER:-{user}:{user}}}
  read_only: true
  tmpfs: [/tmp]
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  restart: on-failure
  init: true
  stop_grace_period: 20s
  logging: {{driver: json-file, options: {{max-size: 10m, max-file: "3"}}}}

x-slim: &slim
  <<: *node
  image: ${{SILOMIX_IMAGE:-{image}}}
  build: {{context: .., dockerfile: deploy/Dockerfile, target: slim}}

x-train: &train
  <<: *node
  image: ${{SILOMIX_TRAIN_IMAGE:-{train}}}
  build: {{context: .., dockerfile: deploy/Dockerfile, target: train}}

services:
"""
NODE = """\
  {name}:
    <<: *{kind}
    command: [{role}, --config, /fed/{name}]
    healthcheck: {{test: [CMD, silomix, health, --config, /fed/{name}], interval: 30s, timeout: 10s, start_period: 2m}}
    volumes:
      - ${{SILOMIX_FEDERATION:-./fed}}/federation.toml:/fed/federation.toml:ro
      - ${{SILOMIX_FEDERATION:-./fed}}/ca.pem:/fed/ca.pem:ro
      - ${{SILOMIX_FEDERATION:-./fed}}/{name}:/fed/{name}
"""
TAIL = """\

  prometheus:
    image: {prometheus}
    read_only: true
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    restart: unless-stopped
    ports: ["127.0.0.1:9090:9090"]
    volumes:
      - ./prometheus:/etc/prometheus:ro
      - prometheus:/prometheus

  grafana:
    image: {grafana}
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    restart: unless-stopped
    ports: ["127.0.0.1:3000:3000"]
    volumes:
      - ./grafana/provisioning:/etc/grafana/provisioning:ro
      - ./grafana/dashboards:/var/lib/grafana/dashboards:ro
      - grafana:/var/lib/grafana
"""
BROKER = """\

  broker:
    image: {mosquitto}
    user: ${{SILOMIX_USER:-{user}:{user}}}
    read_only: true
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    restart: unless-stopped
    working_dir: /fed/broker
    command: [mosquitto, -c, mosquitto.conf]
    volumes: ["${{SILOMIX_FEDERATION:-./fed}}/broker:/fed/broker:ro"]
"""
OTHERS = ("prometheus", "grafana", "broker")
IMAGES = {
    "prometheus": "prom/prometheus:v3.5.0@sha256:63805ebb8d2b3920190daf1cb14a60871b16fd38bed42b857a3182bc621f4996",
    "grafana": "grafana/grafana:12.1.0@sha256:6ac590e7cabc2fbe8d7b8fc1ce9c9f0582177b334e0df9c927ebd9670469440f",
    "mosquitto": "eclipse-mosquitto:2.0.22@sha256:212f89e1eaeb2c322d6441b64396e3346026674db8fa9c27beac293405c32b3c",
}
"""Of others: by version, for people, and by digest, for whoever pulls them."""
VOLUMES = """\

volumes:
  prometheus:
  grafana:
"""


def compose(source: Source, image: str = "", train_image: str = "") -> str:
    """Write the Compose file of a federation whose nodes reach each other by name."""
    _check(source)
    federation = source.federation
    first = source.port(federation.aggregator.name)
    broker = (
        BROKER.format(user=USER, **IMAGES) if any(source.settings(name).get("mqtt") for name in source.nodes) else ""
    )
    init = (
        f"--silos {len(federation.silos)} --shufflers {len(federation.shufflers)} --name {federation.name} "
        f"--host '{{name}}' \\\n#     --listen-host 0.0.0.0 --base-port {first} --metrics-port {METRICS_PORT} "
        f"--metrics-host 0.0.0.0{' --mqtt broker' if broker else ''}"
    )
    version = installed_version()
    text = HEAD.format(
        init=init,
        image=image or f"silomix:{version}",
        train=train_image or f"silomix-train:{version}",
        user=USER,
        name=federation.name,
    )
    nodes = []
    for name, role in source.nodes.items():
        trains = role is Role.SILO or source.settings(name).get("evaluate")
        nodes.append(NODE.format(name=name, role=role, kind="train" if trains else "slim"))
    return text + "\n".join(nodes) + TAIL.format(**IMAGES) + broker + VOLUMES


def _check(source: Source) -> None:
    """In a container a node must listen to others, and others find it by its name."""
    redo = "make the federation as the first lines of deploy/compose.yaml say"
    for name, role in source.nodes.items():
        own = source.settings(name)
        if name in OTHERS:
            raise RenderError(f"{source.file}: {name}: another container has this name; call the node something else")
        if own.get("mqtt", {"host": "broker"}).get("host") != "broker":
            raise RenderError(f"{source.home / name}: mqtt.host: the broker's container is called broker; {redo}")
        if role is not Role.SILO:
            if source.host(name) != name:
                address = source.federation.member(name).address
                raise RenderError(
                    f"{source.file}: {name}: its address is {address}, and its container's is {name}; {redo}"
                )
            if source.here(name) and own.get("listen") != f"0.0.0.0:{source.port(name)}":
                raise RenderError(f"{source.home / name}: listen: give 0.0.0.0:{source.port(name)}; {redo}")
        if source.here(name) and (own.get("metrics_port"), own.get("metrics_host")) != (METRICS_PORT, "0.0.0.0"):  # noqa: S104
            raise RenderError(f"{source.home / name}: metrics_port: give {METRICS_PORT} on 0.0.0.0; {redo}")
