"""What happened when, recorded and read: timelines, what a step waited for, replays."""
