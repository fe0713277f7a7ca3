"""The service: OpenAI's routes over stores of one model. Imported by nobody but the verb `serve` and by tests."""
