"""What runs say: tables, run directories and trackers' exports become observations; what is unclear is asked about."""
