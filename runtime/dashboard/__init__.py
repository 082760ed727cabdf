"""The federation's dashboard: its panels, for Grafana and as a picture."""
