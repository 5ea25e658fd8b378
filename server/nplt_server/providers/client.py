"""The parts that all vendors' adapters share: the provider, and the client that sends its requests.

`VendorProvider` chooses the API, has it render the request and parse the raw stream of the
answer; `VendorClient` sends it. Errors become the server's own (`failures`).

Servers differ in what they take: tools or none, content as a list or as a string, a schema or
none, one of two APIs, a model's reasoning or not (`RequestForm`). A request that is refused for
such a reason, before any piece of an answer, raises `ProviderRefused` with `instead`: what is to
be different. The caller sends the same request again at once, with that as its `form`, and repeats
this until there is an answer or a refusal without `instead`; each form is offered once. If the last
refusal is about the API or the reasoning too, the first one says more and is the one to raise.
`retries.RequestForms` does this bookkeeping. `refusal_rules` reads the refusals, `learned_forms`
remembers the form in which a model has answered; `ModelRoute` does not count a refusal with
`instead` as a failed call.

The SDKs make an object of every chunk, which costs ten times what reading it does, walk through
the whole context to send it, and return a cut stream as complete. So each of them only says, once,
what its requests look like (`sdk_requests`); `http_client` sends them. The SDKs are imported at the
first call, in a thread: that takes a second.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Hashable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import orjson
from msgspec import structs

from nplt_protocol import JsonObject, JsonValue
from nplt_server.context.messages import ModelInputMessage
from nplt_server.errors import (
    ConfigurationError,
    ProviderError,
    ProviderRefused,
    ProviderUnauthorized,
    VendorWords,
)
from nplt_server.heap import loading_modules
from nplt_server.providers import DeltaStream, LlmRequest, ModelOutputDelta, Patience, TextPiece
from nplt_server.providers.compiler import (
    AssistantStep,
    CompiledContext,
    ContextCompiler,
    UserStep,
)
from nplt_server.providers.failures import (
    failure_of,
    failure_of_page,
    failure_of_transport,
)
from nplt_server.providers.learned_forms import LearnedForms
from nplt_server.providers.models import ListedModel
from nplt_server.providers.refusal_rules import change_for
from nplt_server.providers.server_details import read_now, read_with_details
from nplt_server.providers.sse import SseParser, json_object_of
from nplt_server.providers.vendor_api import (
    AnswerParser,
    RenderedRequest,
    Rendering,
    VendorApi,
    with_entries,
)
from nplt_server.providers.vendor_errors import VendorError, without_prompt
from nplt_server.request_form import RequestForm

if TYPE_CHECKING:
    import httpx2

    from nplt_server.providers.http_client import HttpClient, HttpRequest, HttpResponse
    from nplt_server.providers.sdk_requests import SdkRequests


_NO_KEY = "none"
_LIST_SECONDS_MAX = 10.0
_PAGES_MAX = 10
_LIST_BYTES_MAX = 8 * 1024 * 1024
_ERROR_BYTES_MAX = 64 * 1024
"""More of an error is not read: the status says enough."""
_JSON_BYTES_MAX = 32 * 1024 * 1024
"""A whole answer in place of a stream."""


class VendorClient(ABC):
    vendor: ClassVar[str]
    vendor_url: ClassVar[str]

    def __init__(
        self,
        *,
        api_key: str,
        key_source: str = "",
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        patience: Patience | None = None,
    ) -> None:
        """`key_source`: where the key is from, and how to correct it."""
        # The HTTP library would refuse such a key too, and quote it.
        if any(not "!" <= character <= "~" for character in api_key):
            raise ConfigurationError(["providers: a key has characters that no key has"])
        # Servers of one's own often need none, and the SDKs won't do without.
        self._api_key = api_key or _NO_KEY
        self._key_source = key_source
        self.address = base_url or self.vendor_url
        # Gateways look for it in either place.
        is_elsewhere = api_key and self.address != self.vendor_url
        self._headers = {**({"x-api-key": api_key} if is_elsewhere else {}), **(headers or {})}
        self._patience = patience or Patience()
        self._opening = anyio.Lock()
        self._open_clients: tuple[HttpClient, SdkRequests] | None = None
        self._requests: dict[Hashable, HttpRequest] = {}
        """The requests of model calls, without their bodies, by what they depend on."""

    @abstractmethod
    def _open(self, http: httpx2.AsyncClient) -> Any:
        """Imports the SDK and makes its client. What the SDK reads from the environment is taken
        out of it: it may belong to another account or server."""

    @abstractmethod
    async def _ask(self, sdk: Any, rendered: RenderedRequest) -> None:
        """Has the SDK send a request to which the rendered one is equal but for its body."""

    @abstractmethod
    async def _ask_for_models(self, sdk: Any, after: str | None) -> None:
        """Has the SDK ask for a page of the list of models: the first, or the one after that."""

    def _next_page(self, page: JsonObject) -> str | None:
        """The model after which the next page of the list begins; `None` if there is none."""
        return None

    @abstractmethod
    def _address_hint(self, path: str) -> str:
        """Says what may be wrong with the path of `base_url`, where nothing was found."""

    async def list_models(self) -> tuple[ListedModel, ...]:
        """Raises whatever goes wrong; the caller tells no more of it than its type."""
        http, sdk = await self._opened()
        models: list[ListedModel] = []
        after: str | None = None
        with anyio.fail_after(_LIST_SECONDS_MAX):  # what is imported first takes its time
            for _ in range(_PAGES_MAX):
                request = await sdk.request(partial(self._ask_for_models, after=after))
                page = json_object_of(await _fetched(http, request, b""))
                models += await read_with_details(page, self.fetch)
                after = self._next_page(page)
                if after is None:
                    break
        return tuple(models)

    async def fetch(self, path: str, body: JsonObject | None) -> JsonValue:
        """Asks an endpoint of the server besides its API. Raises whatever goes wrong."""
        http, sdk = await self._opened()
        headers = {**self._headers}
        if self._api_key != _NO_KEY:
            headers["authorization"] = f"Bearer {self._api_key}"
        # Its root is where the version of the API begins.
        url = re.sub(r"/(v\d\w*)/?$", "", self.address.rstrip("/")) + path
        request = sdk.plain_request("GET" if body is None else "POST", url, headers)
        sent = b"" if body is None else orjson.dumps(body)
        answer: JsonValue = orjson.loads(await _fetched(http, request, sent))
        return answer

    async def stream(
        self, rendered: RenderedRequest, parser: AnswerParser
    ) -> AsyncGenerator[ModelOutputDelta, None]:
        """Ends where the answer ends, or where the stream does."""
        from nplt_server.providers.http_client import HttpFailure

        clock = asyncio.get_running_loop().time
        await self._opened()  # which may take seconds that are not the provider's
        began = clock()

        def deadline() -> float:
            return parser.deadline(self._patience, began=began, now=clock())

        response = await self._response(rendered, deadline())
        try:
            if response.content_type.startswith(_WHOLE_KINDS):
                for delta in await _deltas_of_whole(response, deadline(), parser):
                    yield delta
                return
            events = SseParser()
            while not parser.is_done:
                chunk = await response.read(deadline())
                if not chunk:
                    return
                for event in events.feed(chunk):
                    for delta in parser.feed(event):
                        yield delta
                    if parser.is_done:
                        break
        except ProviderError as failure:
            words = failure.vendor or VendorWords()
            vendor_error = VendorError(code=words.code, param=words.param, message=words.message)
            raise self._explained(failure, vendor_error, rendered) from None
        except (HttpFailure, TimeoutError) as failure:
            raise failure_of_transport(
                failure, before_first_token=not parser.has_spoken, address=self.address
            ) from None
        finally:
            response.close(is_done=parser.is_done)

    async def _response(self, rendered: RenderedRequest, deadline: float) -> HttpResponse:
        """Sends the request; the response says that it succeeded."""
        from nplt_server.providers.http_client import HttpFailure

        try:
            http, sdk = await self._opened()
            request = self._requests.get(rendered.kind)
            if request is None:
                request = await sdk.request(partial(self._ask, rendered=rendered))
                self._requests[rendered.kind] = request
            response = await http.send(request, rendered.data, deadline=deadline)
            if response.is_success:
                return response
            try:
                body = await response.whole(_ERROR_BYTES_MAX, deadline=deadline, may_cut=True)
            finally:
                response.close()
        except (HttpFailure, TimeoutError) as failure:
            raise failure_of_transport(
                failure, before_first_token=True, address=self.address
            ) from None
        raise self._refusal(response, body, rendered) from None

    def _refusal(
        self, response: HttpResponse, body: bytes, rendered: RenderedRequest
    ) -> ProviderError:
        vendor_error = VendorError.of_body(body)
        retry_after = response.headers.get("retry-after")
        failure = failure_of(response.status, vendor_error, retry_after=retry_after)
        hint = self._address_hint(urlsplit(self.address).path)
        if hint and isinstance(failure, ProviderRefused) and failure.wrong_api:
            failure = replace(failure, sentence=f"{failure.sentence}: {hint}")
        is_about_key = isinstance(failure, ProviderUnauthorized) and failure.of_provider
        if is_about_key and self._key_source:
            failure = replace(failure, sentence=f"{failure.sentence}; {self._key_source}")
        return self._explained(failure, vendor_error, rendered)

    def _explained(
        self, failure: ProviderError, vendor_error: VendorError, rendered: RenderedRequest
    ) -> ProviderError:
        """Adds the entries that the failure is about and the change of form that it asks for, and
        removes the key and the prompt's text from the vendor's words."""
        body = rendered.body
        if failure.vendor is not None:
            vendor = without_prompt(failure.vendor, body, self._api_key)
            failure = replace(failure, vendor=vendor)
        if isinstance(failure, ProviderRefused):
            words = f"{vendor_error.kind} {vendor_error.code} {vendor_error.message}"
            change = change_for(words, vendor_error.param, body)
            return with_entries(replace(failure, change=change), vendor_error.message, rendered)
        return failure

    async def aclose(self) -> None:
        opened, self._open_clients = self._open_clients, None
        if opened is not None:
            await opened[0].aclose()

    async def _opened(self) -> tuple[HttpClient, SdkRequests]:
        def open_both() -> tuple[HttpClient, SdkRequests]:
            from nplt_server.providers.http_client import HttpClient
            from nplt_server.providers.sdk_requests import SdkRequests

            http = HttpClient(self.address, connect_seconds=self._patience.connect_seconds)
            with loading_modules():
                return http, SdkRequests(self._open)

        if self._open_clients is not None:
            return self._open_clients
        from nplt_server.providers.http_client import HttpFailure

        async with self._opening:
            if self._open_clients is None:
                try:
                    self._open_clients = await anyio.to_thread.run_sync(open_both)
                except ImportError:
                    raise ProviderRefused(f"{self.vendor}'s SDK is not installed here") from None
                except HttpFailure as failure:
                    raise failure_of_transport(
                        failure, before_first_token=True, address=self.address
                    ) from None
            return self._open_clients


_WHOLE_KINDS = ("application/json", "text/html")
"""The kinds of bodies that are no stream of events."""


async def _fetched(http: HttpClient, request: HttpRequest, body: bytes) -> bytes:
    from nplt_server.providers.http_client import RefusedStatus

    deadline = asyncio.get_running_loop().time() + _LIST_SECONDS_MAX
    response = await http.send(request, body, deadline=deadline)
    try:
        if not response.is_success:
            raise RefusedStatus(response.status)
        return await response.whole(_LIST_BYTES_MAX, deadline=deadline)
    finally:
        response.close()


async def _deltas_of_whole(
    response: HttpResponse, deadline: float, parser: AnswerParser
) -> list[ModelOutputDelta]:
    is_page = not response.content_type.startswith("application/json")
    # The title is enough of the page of a proxy.
    most = _ERROR_BYTES_MAX if is_page else _JSON_BYTES_MAX
    body = await response.whole(most, deadline=deadline, may_cut=is_page)
    if (page := VendorError.of_body(body).page) is not None:
        raise failure_of_page(response.status, page)
    return parser.feed_whole(body)


_OF_SCHEMAS = re.compile(
    r"(?i)response_format|text\.format|output_config|output_format|json_schema|schema|grammar"
    r"|mime type"
)
"""Words of a refusal that is about the schema of the answer."""
_USUAL_FORM = RequestForm()


class VendorProvider:
    def __init__(  # noqa: PLR0913
        self,
        provider_id: str,
        client: VendorClient,
        *,
        apis: Sequence[VendorApi],
        models: tuple[str, ...],
        form: RequestForm = _USUAL_FORM,
        model_forms: Mapping[str, RequestForm] | None = None,
        learned: LearnedForms | None = None,
        extra_bodies: Mapping[str, Mapping[str, Any]] | None = None,
        is_open: bool = False,
    ) -> None:
        """`apis`: one API of the server, or two. `form`: what the settings and the vendor's preset
        say of all its models, `model_forms` of single ones."""
        self.id = provider_id
        self.models = models
        self.is_open = is_open
        self._client = client
        self._extra_bodies = extra_bodies or {}
        """Fields that are added to the requests of each model."""
        self._apis = tuple(apis)
        self._form = form
        self._model_forms = model_forms or {}
        self._learned = learned or LearnedForms()
        self._apis_in_forms: dict[tuple[RequestForm, str], VendorApi] = {}
        """The APIs of models, by the form of their requests. Each call asks more than once."""
        self._answered: set[str] = set()
        """The models that have answered through the API they are called through."""
        self._refused_schemas: set[tuple[str, int]] = set()
        """The schemas that the vendor refused to enforce, with the model."""

    def specification_of(self, model: str) -> str:
        return self._api_in(self._form_of(model), model).specification

    def call_model(self, request: LlmRequest) -> DeltaStream:
        return aclosing(self._stream(request))

    @property
    def address(self) -> str:
        return self._client.address

    async def list_models(self) -> tuple[ListedModel, ...]:
        return await self._client.list_models()

    async def model_now(self, model: ListedModel) -> ListedModel:
        return await read_now(model, self._client.fetch)

    async def aclose(self) -> None:
        await self._client.aclose()

    def _form_of(self, model: str) -> RequestForm:
        """The form of the model's requests: the vendor's, the settings', what was learned."""
        form = self._form.changed(self._model_forms.get(model))
        return form.changed(self._learned.at(f"{self.id}/{model}", self.address))

    def _api_in(self, form: RequestForm, model: str) -> VendorApi:
        known = self._apis_in_forms.get((form, model))
        if known is None:
            if len(self._apis_in_forms) >= _APIS_IN_FORMS_MAX:
                self._apis_in_forms.clear()
            known = self._apis_in_forms[form, model] = self._find_api(form, model)
        return known

    def _find_api(self, form: RequestForm, model: str) -> VendorApi:
        named = (api for api in self._apis if api.specification == form.specification)
        needed = (api for api in self._apis if api.is_needed_by(model))
        return next(chain(named, needed), self._apis[0]).in_form(form)

    async def _stream(self, request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        """Sends the request once, in its form. A refusal says whether another form may be
        accepted."""
        model, change = request.invocation.model, request.form
        form = self._form_of(model).changed(change)
        schema = (model, hash(orjson.dumps(request.schema)))
        if form.without_schema or schema in self._refused_schemas:
            request = _without_schema(request)
        if form.without_tools:
            request = structs.replace(request, tools=())
        api = self._api_in(form, model)
        if request.invocation.specification != api.specification:
            invocation = structs.replace(request.invocation, specification=api.specification)
            request = structs.replace(request, invocation=invocation)
        rendered = await self._rendered(request, api, form)
        parser = api.parser(rendered)
        try:
            async with aclosing(self._client.stream(rendered, parser)) as deltas:
                async for delta in deltas:
                    if model not in self._answered or change is not None:
                        self._answered.add(model)
                        await self._learn(model, change)
                        change = None
                    yield delta
        except ProviderRefused as refusal:
            instead = None if parser.has_spoken else self._instead(refusal, request, api)
            if instead is None:
                raise
            if request.schema is not None and instead.without_schema:
                if len(self._refused_schemas) >= _REFUSED_SCHEMAS_MAX:
                    self._refused_schemas.clear()
                self._refused_schemas.add(schema)
            if change is not None and refusal.change is not None:
                # It is about something else now, so the change before was right.
                await self._learn(model, structs.replace(change, specification=None))
            raise replace(refusal, instead=instead) from None

    async def _rendered(
        self, request: LlmRequest, api: VendorApi, form: RequestForm
    ) -> RenderedRequest:
        """Renders what is new since the last call; in a thread, if that is much."""
        key = (self.id, request.invocation)
        draft = request.renderings.take(key)
        if not isinstance(draft, _Draft):
            draft = _Draft(api)
        if draft.compiler.new_characters(request.context) <= _QUICK_CHARACTERS_MAX:
            rendered = draft.render(request, api, form)
        else:
            rendered = await anyio.to_thread.run_sync(draft.render, request, api, form)
        request.renderings.keep(key, draft)
        extra_body = self._extra_bodies.get(request.invocation.model)
        return rendered.with_fields(extra_body) if extra_body else rendered

    async def _learn(self, model: str, change: RequestForm | None) -> None:
        """Learns the form in which a refused request was accepted. Not that a schema or a call was
        refused: the next may be taken."""
        if change is not None:
            lasting = structs.replace(change, without_schema=False, calls_as_text=False)
            await self._learned.learn(f"{self.id}/{model}", self.address, lasting)

    def _instead(
        self, refusal: ProviderRefused, request: LlmRequest, api: VendorApi
    ) -> RequestForm | None:
        """All that is to be different when the refused request is sent again; `None` if another
        form does not help: it was tried, or nothing says which."""
        model, tried = request.invocation.model, request.form or _USUAL_FORM
        change: RequestForm | None = None
        names = (each.specification for each in self._apis)
        if request.schema is not None and _is_about_schema(refusal):
            change = RequestForm(without_schema=True)
        elif refusal.wrong_reasoning and tried.returns_reasoning is None:
            change = api.other_reasoning(model)
        elif (
            refusal.wrong_api
            and len(self._apis) > 1
            and tried.specification is None
            and model not in self._answered
        ):
            change = RequestForm(specification=next(n for n in names if n != api.specification))
        elif not refusal.wrong_reasoning:
            change = refusal.change
        if change is None or api.form.changed(change) == api.form:
            return None
        return tried.changed(change)


_REFUSED_SCHEMAS_MAX = 1_000
_APIS_IN_FORMS_MAX = 1_000


_QUICK_CHARACTERS_MAX = 128 * 1024
"""The most new characters that are rendered without a thread; they take a millisecond."""


class _Draft:
    """The request for one context and model, which grows from call to call."""

    def __init__(self, api: VendorApi) -> None:
        self.compiler = ContextCompiler(api.rules)
        self._rendering = Rendering()

    def render(self, request: LlmRequest, api: VendorApi, form: RequestForm) -> RenderedRequest:
        compiled = self.compiler.compile(request.context, origin=request.invocation, form=form)
        shortened = _continued(api, request, compiled)
        if shortened is not None:
            rendered = api.render(request, shortened, self._rendering)
            if api.takes_prefill(rendered):
                return rendered
        return api.render(request, compiled, self._rendering)


def _continued(
    api: VendorApi, request: LlmRequest, compiled: CompiledContext
) -> CompiledContext | None:
    """The context with the answer to go on with as its last step, if that is documented for
    the model and the answer is plain text. Anthropic refuses one that ends with white space."""
    may_prefill = not api.form.without_prefill and api.may_prefill(request.invocation.model)
    if not (request.continues and may_prefill):
        return None
    last = request.context[-1]
    if not isinstance(last, ModelInputMessage) or len(compiled.steps) < _STEPS_CONTINUED_MIN:
        return None
    answer, asked = compiled.steps[-2:]
    is_plain = (
        isinstance(asked, UserStep)
        and asked.texts == (last.content,)
        and not asked.images
        and not asked.results
        and isinstance(answer, AssistantStep)
        and all(isinstance(block, TextPiece) for block in answer.blocks)
        and not answer.text[-1:].isspace()
    )
    return structs.replace(compiled, steps=compiled.steps[:-1]) if is_plain else None


_STEPS_CONTINUED_MIN = 3
"""A prompt, its answer, and the request to go on."""


def _without_schema(request: LlmRequest) -> LlmRequest:
    plain = {name: value for name, value in request.options.items() if name != "schema"}
    return structs.replace(request, options=plain)


def _is_about_schema(refusal: ProviderRefused) -> bool:
    words = refusal.vendor
    return words is not None and _OF_SCHEMAS.search(f"{words.param} {words.message}") is not None
