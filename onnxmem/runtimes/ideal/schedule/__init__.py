"""Other orders of execution that lower the peak: which one, by how much, and whether it is proven.

Nodes of subgraphs stay in their order: what a node's subgraphs take belongs to the node. The search
is imported where another order is asked for.
"""
