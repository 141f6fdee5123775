# The pipeline in a container: its jobs, and the Spark that they run on (driver, master and workers are all started from it).
#
#   docker build --file docker/pipeline.Dockerfile --tag barnabas-pipeline .
#   docker run --network host --volume archive:/data barnabas-pipeline archive --topic flights --into /data/archive
#
# It contains Python with barnabas[spark] (including PySpark 4.0.0), Java 17, and the jars of Spark's Kafka connector.

FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends maven
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY barnabas barnabas
COPY broker broker
COPY protocol protocol
COPY replication replication
COPY storage storage
RUN python -m venv /opt/barnabas \
    && /opt/barnabas/bin/pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt ".[spark]"
ENV BARNABAS_SPARK_JARS=/opt/jars
RUN /opt/barnabas/bin/python -c "from barnabas.pipeline.spark.jars import find_connector as find; find(['avro']).settings['spark.jars']"

FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home spark \
    && install --directory --owner 1000 --group 1000 /data
COPY --from=build /opt/barnabas /opt/barnabas
COPY --from=build /opt/jars /opt/jars
ENV PATH=/opt/barnabas/bin:$PATH BARNABAS_SPARK_JARS=/opt/jars
WORKDIR /data
USER 1000:1000
VOLUME ["/data"]
ENTRYPOINT ["barnabas", "pipeline"]
CMD ["--help"]
