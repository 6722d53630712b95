"""Quantised networks written as float operators between DequantizeLinear and QuantizeLinear."""
