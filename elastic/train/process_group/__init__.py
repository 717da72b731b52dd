"""The process group of a generation: rendezvous, init, planned stop, shutdown."""
