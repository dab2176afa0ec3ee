"""What the indexer selects: traces of selections, their overlap between neighbours, sinks, strides, and bytes moved."""
