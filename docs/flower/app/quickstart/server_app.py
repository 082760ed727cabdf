"""The server: federated averaging, measured on all digits."""

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import accuracy, initial

app = ServerApp()


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Measure the global model."""
    return MetricRecord({"accuracy": accuracy({name: array.numpy() for name, array in arrays.items()})})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds."""
    strategy = FedAvg(fraction_evaluate=0.0)
    arrays = ArrayRecord({name: Array(array) for name, array in initial().items()})
    rounds = context.run_config["num-server-rounds"]
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds, evaluate_fn=evaluate)
    print("accuracy", result.evaluate_metrics_serverapp[rounds]["accuracy"])
