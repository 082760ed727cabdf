"""The processes: each a thin asyncio driver round a pure state machine of the core."""
