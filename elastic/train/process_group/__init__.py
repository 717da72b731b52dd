"""The process group of a generation: rendezvous, init, agreement on a planned stop, shutdown."""
