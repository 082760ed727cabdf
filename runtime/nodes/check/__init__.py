"""The tamper check in the drivers: what each role computes, keeps and sends."""
