"""Every text that crosses a process or an upgrade."""
