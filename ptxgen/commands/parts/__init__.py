"""What several commands share: options, arguments, findings, progress, output and exit codes."""
