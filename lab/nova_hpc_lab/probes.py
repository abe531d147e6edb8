"""How one sees that a service works: by using it. Each raises where it does not."""

from __future__ import annotations

import socket

import amqp
import pymysql
import requests

from nova_hpc_lab import config
from nova_hpc_lab.errors import LabError
from nova_hpc_lab.state import Settings


def listening(port: int) -> None:
    """Whether anything takes connections at *port*."""
    with socket.create_connection((config.LOOPBACK, port), timeout=5):
        pass


def http(port: int) -> None:
    """Whether the API at *port* answers with its versions."""
    # The proxies of the environment do not lead to the loopback.
    with requests.Session() as session:
        session.trust_env = False
        answer = session.get(f"http://{config.LOOPBACK}:{port}/", timeout=20)
    if answer.status_code >= 400:
        raise LabError(f"GET / answers {answer.status_code}")


def database(settings: Settings) -> None:
    """Whether the database server lets the lab in."""
    with connect(settings) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def connect(settings: Settings, database: str | None = None) -> pymysql.Connection:
    """A connection to the lab's database server."""
    return pymysql.connect(
        host=config.LOOPBACK,
        port=settings.ports["database"],
        user="lab",
        password=settings.passwords["database"],
        database=database,
        autocommit=True,
        connect_timeout=10,
        read_timeout=120,
    )


def broker(settings: Settings) -> amqp.Connection:
    """A connection to RabbitMQ as the lab's user."""
    return amqp.Connection(
        host=f"{config.LOOPBACK}:{settings.ports['messages']}",
        userid="lab",
        password=settings.passwords["messages"],
        connect_timeout=10,
    )


def messages(settings: Settings) -> None:
    """Whether RabbitMQ lets the lab in."""
    with broker(settings):
        pass


def worker(settings: Settings, binary: str, topic: str) -> None:
    """Whether a service of Nova takes messages, and leaves heartbeats in the database."""
    with broker(settings) as connection:
        try:
            queue = connection.channel().queue_declare(topic, passive=True)
        except amqp.NotFound:
            raise LabError("does not listen to the message bus yet") from None
    if not queue.consumer_count:
        raise LabError("does not listen to the message bus")
    with connect(settings, "nova") as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT TIMESTAMPDIFF(SECOND, COALESCE(updated_at, created_at), UTC_TIMESTAMP())"
            " FROM services WHERE `binary` = %s AND deleted = 0",
            (binary,),
        )
        ages = [int(row[0]) for row in cursor.fetchall()]
    if not ages:
        raise LabError("not registered yet")
    # Nova's own limit, [DEFAULT]service_down_time.
    if min(ages) > 60:
        raise LabError(f"last heartbeat {min(ages)} s ago")
