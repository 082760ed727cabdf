"""The client: trains the model that the server sends on its own records."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import load_data, train

app = ClientApp()


@app.train()
def train_one_round(msg: Message, context: Context) -> Message:
    """Train, and reply with the model and the number of examples."""
    config = context.node_config
    x, y = load_data(config["partition-id"], config["num-partitions"])
    model = train({name: array.numpy() for name, array in msg.content["arrays"].items()}, x, y)
    arrays = ArrayRecord({name: Array(array) for name, array in model.items()})
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)
