"""How clients are computed: the only loops over clients, and the only choice of device and precision."""
