"""Requests -> Batch: page allocator, prefix sharing, chunking, padding, poison, and the scenario table."""

from dsa_verify.batch.batch import Batch
from dsa_verify.batch.requests import Request
from dsa_verify.batch.scenario import Bucket, Scenario

__all__ = ["Batch", "Bucket", "Request", "Scenario"]
