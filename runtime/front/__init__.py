"""The front door: from a task to a trained model, and to a verdict, in one call. `import silomix` offers it."""
