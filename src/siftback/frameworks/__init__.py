"""Selection inside the frameworks people train with, one file for each."""
