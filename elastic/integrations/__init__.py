"""Elastic training for scripts of other frameworks: Hugging Face's Trainer, Lightning and Accelerate.

Each module is imported by name and loads its framework: `elastic.integrations.transformers`,
`elastic.integrations.lightning`, `elastic.integrations.accelerate`. `elastic.integrations.trackers` continues a run of
W&B, MLflow or TensorBoard in all generations.
"""
