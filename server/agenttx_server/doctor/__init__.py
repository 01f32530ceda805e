"""What may be wrong with a server's surroundings and its database, each finding with its remedy."""

from agenttx_server.doctor.examination import examine
from agenttx_server.doctor.findings import Finding, Level

__all__ = ["Finding", "Level", "examine"]
