"""What a run costs in energy and carbon, each figure tagged measured, estimated or assumed."""

from areca.footprint.energy import DEFAULT_GRID, GridIntensity, add, carbon_kg, energy_kwh, estimate_run, tagged

__all__ = ["DEFAULT_GRID", "GridIntensity", "add", "carbon_kg", "energy_kwh", "estimate_run", "tagged"]
