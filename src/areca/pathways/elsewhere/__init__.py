"""Islands of other processes: their agents, the messages and values that go there, and who starts and watches them."""
