"""Reading IR: problems, resources and the flow of control. Nothing here changes anything."""
