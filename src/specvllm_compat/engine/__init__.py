"""The part that runs vLLM: an assembled engine, its capture of states, and the loop around them.

The only package that imports vllm and torch. It knows nothing of shims or of speculators.
"""
