"""The verbs, one module each: `answer(config, output)` asks an application, shows the answer, keeps it."""
