"""The topics of the cluster."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.admin import describe_topics
from kbroker.console.rendering import console, page


async def topics(request: Request) -> Response:
    found = await console(request).kafka.cached(describe_topics)
    return page(request, "topics.html", topics=sorted(found, key=lambda topic: topic.name))


routes = [Route("/topics", topics)]
