"""Child programs: started, limited, logged and ended in one way, with typed messages over a socket pair."""
