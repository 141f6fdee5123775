"""The demo: real flights through a broker, a consumer group and Spark, with every figure checked."""
