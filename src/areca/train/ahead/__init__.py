"""What a training step needs, sends and can reach, known ahead of time: by arithmetic or from its compiled program."""
