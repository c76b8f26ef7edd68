"""Fluid's own protocol between trainers and servers."""

from bireme.protos import transport_pb2

SERVICE = f"/{transport_pb2.DESCRIPTOR.services_by_name['SendRecvService'].full_name}/"
"""What the path of every method begins with."""
