"""The operators: one job, submitted once, waited for without a worker slot, reported; and a reaper of what is left."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_multikueue._compat import AIRFLOW_2, BaseOperator, conf, task_state
from airflow_provider_multikueue.decisions.orders import Orders
from airflow_provider_multikueue.links import LINKS, push_manager_link, push_output_link, push_pods_link
from airflow_provider_multikueue.object_storage import check_uri
from airflow_provider_multikueue.tasks import Waiting, WaitsForJob, will_retry

if TYPE_CHECKING:
    from airflow_provider_multikueue._compat import Context
    from airflow_provider_multikueue.decisions.names import Lifetime
    from airflow_provider_multikueue.decisions.outcome import Outcome
    from airflow_provider_multikueue.fleets.fleet import Fleet

__all__ = ["MultiKueueJobOperator", "MultiKueueReapOperator"]

REAPER_GRACE = timedelta(minutes=5)
"""How long the reaper leaves a job whose time is over to those whose task it is: they say why it ended."""


class MultiKueueJobOperator(WaitsForJob, BaseOperator):
    """Run a job in the first region of a MultiKueue fleet that has room for it.

    The job is submitted to the manager once, whatever is retried or restarted; the task waits for admission, follows
    the job to the region that won, shows its pods' output, and returns a report. ``return_value`` is that report; the
    XCom ``placement`` is there as soon as the job is admitted. On failure the report is the XCom ``report``.

    A job can be moved to another region while it runs, and starts from zero there: it must bear that.

    :param job: the manifest: a ``.yaml``/``.yml``/``.json`` template file, YAML text, a dict or a ``kubernetes`` client
        model.
    :param queue_name: LocalQueue on the manager; else the manifest's label, else the connection's.
    :param namespace: else the manifest's, else the connection's, else ``default``.
    :param regions: only these regions may run the job (data residency); None: any.
    :param priority_class: a WorkloadPriorityClass.
    :param max_run_duration: the run time to ask of Dynamic Workload Scheduler.
    :param admission_timeout: from submission to admission; then the job is deleted.
    :param startup_timeout: from admission to the first running container; then the job is deleted.
    :param max_dispatches: how often it may be placed; None: no limit of ours.
    :param wait_until: ``finished``, ``admitted`` or ``submitted``.
    :param logs: ``all`` pods, the ``first`` of each role, ``failed`` pods only, or ``none``.
    :param log_uri: object storage for the whole output of all pods, as it comes: ``gs://``, ``s3://``, ``file://`` or
        what else Airflow's ObjectStoragePath knows, with an Airflow connection as in ``s3://CONN_ID@BUCKET/PREFIX``.
    :param read_result: bring the job's result into the report: the JSON that its leader wrote to
        ``/dev/termination-log``; ``"all"``: a list of every pod's, by index.
    :param on_kill_action: what happens to the job when the task is stopped: ``delete`` or ``keep``.
    :param heal: mend known faults of a fleet where rights allow.
    :param cleanup: when to delete the ended job on the manager: ``always``, ``on_success`` or ``never``.
    :param deferrable: wait in the triggerer.
    :param multikueue_conn_id: a connection of type ``multikueue``.
    """

    template_fields: Sequence[str] = (
        "job",
        "queue_name",
        "namespace",
        "regions",
        "priority_class",
        "log_uri",
        "multikueue_conn_id",
    )
    template_ext: Sequence[str] = (".yaml", ".yml", ".json")
    template_fields_renderers = {"job": "yaml"}  # noqa: RUF012 - as in BaseOperator
    operator_extra_links = LINKS
    _owned = True
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        job: Any,
        queue_name: str | None = None,
        namespace: str | None = None,
        regions: Sequence[str] | None = None,
        priority_class: str | None = None,
        max_run_duration: timedelta | None = None,
        admission_timeout: timedelta | None = None,
        startup_timeout: timedelta | None = None,
        max_dispatches: int | None = None,
        wait_until: Literal["finished", "admitted", "submitted"] = "finished",
        logs: Literal["all", "first", "failed", "none"] = "all",
        log_uri: str | None = None,
        read_result: bool | Literal["all"] = False,
        on_kill_action: Literal["delete", "keep"] = "delete",
        heal: bool = True,
        cleanup: Literal["always", "on_success", "never"] = "always",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        multikueue_conn_id: str = "multikueue_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.queue_name = queue_name
        self.namespace = namespace
        self.regions = regions
        self.priority_class = priority_class
        self.max_run_duration = max_run_duration
        self.admission_timeout = admission_timeout
        self.startup_timeout = startup_timeout
        self.max_dispatches = max_dispatches
        self.wait_until = wait_until
        self.logs = logs
        self.log_uri = log_uri
        self.read_result = read_result
        self.on_kill_action = on_kill_action
        self.heal = heal
        self.cleanup = cleanup
        self.deferrable = deferrable
        self.multikueue_conn_id = multikueue_conn_id
        self._waiting = Waiting()
        self._submitted_at: datetime | None = None

    def render_template(self, content: Any, *args: Any, **named: Any) -> Any:
        """Render also what is inside a ``kubernetes`` client model: as the dict that it stands for."""
        if hasattr(content, "openapi_types"):
            from kubernetes.client import ApiClient

            content = ApiClient().sanitize_for_serialization(content)
        return super().render_template(content, *args, **named)

    def execute(self, context: Context) -> dict[str, Any] | None:
        """Submit the job and wait for it, here or in the triggerer; return the report."""
        self._check()
        self._waiting.ti = context["ti"]
        part = self._waiting.run(lambda: self._submit(context), interruptible=False)
        if self.wait_until == "submitted":
            look = Orders(until="now", regions=self._regions)
            return self._conclude(context, self._waiting.run(lambda: self._follow(part, look)))
        orders = self._orders(context)
        if self.deferrable:
            self._defer(part, orders)
        return self._conclude(context, self._waiting.run(lambda: self._follow(part, orders, context["ti"].xcom_push)))

    def execute_complete(
        self, context: Context, event: Mapping[str, Any] | None = None, job: dict[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Return the report that the trigger sent, or raise the error that it describes."""
        from airflow_provider_multikueue.decisions.outcome import Outcome

        self._waiting.job, self._waiting.ti = job, context["ti"]
        return self._conclude(context, Outcome.from_event(event))

    def _check(self) -> None:
        choices = {
            "wait_until": ("finished", "admitted", "submitted"),
            "logs": ("all", "first", "failed", "none"),
            "on_kill_action": ("delete", "keep"),
            "cleanup": ("always", "on_success", "never"),
            "read_result": (True, False, "all"),
        }
        for name, allowed in choices.items():
            if (value := getattr(self, name)) not in allowed:
                raise ValueError(f"{name}={value!r} is not one of {', '.join(map(str, allowed))}")
        if isinstance(self.regions, str):
            raise ValueError(f"regions={self.regions!r} must be a list of regions")
        for name in ("max_run_duration", "admission_timeout", "startup_timeout"):
            span = getattr(self, name)
            if span is not None and not (isinstance(span, timedelta) and span > timedelta()):
                raise ValueError(f"{name}={span!r} must be a timedelta of more than nothing")
        if self.max_dispatches is not None and self.max_dispatches < 1:
            raise ValueError(f"max_dispatches={self.max_dispatches!r} would let the job run nowhere; give 1 or more")
        check_uri("log_uri", self.log_uri)

    def _orders(self, context: Context) -> Orders:
        now = datetime.now(UTC)
        return Orders(
            until=self.wait_until,
            admission_deadline=_text(_after(self._submitted_at or now, self.admission_timeout)),
            deadline=_text(self._execution_deadline(context["ti"])),
            startup_seconds=self.startup_timeout.total_seconds() if self.startup_timeout else None,
            max_dispatches=self.max_dispatches,
            regions=self._regions,
            logs=self.logs,
            heal=self.heal,
            read_result=self.read_result,
            log_uri=self.log_uri,
        )

    @property
    def _regions(self) -> tuple[str, ...] | None:
        return tuple(self.regions) if self.regions is not None else None

    async def _submit(self, context: Context) -> dict[str, Any]:
        from airflow_provider_multikueue.decisions.conditions import time_at
        from airflow_provider_multikueue.decisions.report import job_part
        from airflow_provider_multikueue.fleets.submit import submit
        from airflow_provider_multikueue.hooks import LogSink, count_submission, prepare

        sink = LogSink(self.log)
        async with self.hook.open() as (fleet, config):
            request = prepare(
                self.job,
                fleet=fleet,
                config=config,
                sink=sink,
                ti=context["ti"],
                lifetime=self._lifetime(context),
                queue_name=self.queue_name,
                namespace=self.namespace,
                regions=self.regions,
                priority_class=self.priority_class,
                max_run_duration=self.max_run_duration,
                execution_timeout=self.execution_timeout,
                hold=self.wait_until == "finished",
            )
            submitted = await submit(fleet, request, sink)
            part = dict(job_part(submitted.job))
            self._waiting.job = part
            if submitted.adopted:
                self._submitted_at = time_at(submitted.job, "metadata", "creationTimestamp")
            count_submission(submitted)
            # A kill during the submission found no job to delete yet.
            if self._waiting.killed and self._gives_up():
                await self._delete_if_mine(fleet, part, wait=0.0)
            push_manager_link(context["ti"], fleet, part)
            push_output_link(context["ti"], self.log_uri, part)
            return part

    def _lifetime(self, context: Context) -> Lifetime:
        """Return for how long the job may be there when nobody looks: somewhat longer than Airflow's own limits."""
        from airflow_provider_multikueue.decisions.names import Lifetime

        if self.on_kill_action == "keep":
            return Lifetime(kind="detached")
        run, dag = context["dag_run"], context["dag"]
        ends = [_after(run.start_date, dag.dagrun_timeout)]
        if self.wait_until == "finished":
            ends.append(_after(context["ti"].start_date, self.execution_timeout))
        deadline = min((end + REAPER_GRACE for end in ends if end is not None), default=None)
        return Lifetime(kind="task" if self.wait_until == "finished" else "run", deadline=deadline)

    def _conclude(self, context: Context, outcome: Outcome) -> dict[str, Any] | None:
        """Report; the mark on the ended job is the last act, so that nothing reported runs again.

        A job that succeeded is only deleted when Airflow knows that: until then it is all that says so.
        """
        from airflow_provider_multikueue.decisions.measures import measures_of_outcome
        from airflow_provider_multikueue.metrics import emit

        report, ti = outcome.report, context["ti"]
        self._waiting.ended = outcome.ended
        if report is not None and report["placement"] is not None:
            ti.xcom_push("placement", report["placement"])
        if outcome.error is not None and report is not None:
            ti.xcom_push("report", report)
        job = report["job"] if report is not None else self._waiting.job
        if job is not None:
            self._settle(job, lambda fleet, job: self._put_away(fleet, job, outcome, ti), ended=outcome.ended)
        if self.wait_until != "submitted":
            emit(measures_of_outcome(outcome, job))
        if outcome.error is not None:
            raise outcome.error
        return report

    def _settle(
        self,
        job: Mapping[str, Any],
        act: Callable[[Fleet, Mapping[str, Any]], Coroutine[Any, Any, None]],
        *,
        ended: bool,
    ) -> None:
        """Do with the job what its outcome asks for; that this fails is told, and changes nothing about the outcome."""
        from airflow_provider_multikueue.clusters.client import ApiError
        from airflow_provider_multikueue.exceptions import MultiKueueError

        try:
            self.hook.run(lambda fleet, _: act(fleet, job))
        except (ApiError, MultiKueueError) as error:
            where = f"{job['kind']} {job['namespace']}/{job['name']}"
            again = " Until it is gone, another try or a clear of this task reports it again." if ended else ""
            self.log.error("%s could not be deleted on the manager or marked as reported: %s%s", where, error, again)

    async def _put_away(self, fleet: Fleet, job: Mapping[str, Any], outcome: Outcome, ti: Any) -> None:
        from airflow_provider_multikueue.decisions.names import Reported
        from airflow_provider_multikueue.fleets.submit import mark_handed_over, mark_reported

        push_pods_link(ti, fleet, job, outcome.report and outcome.report["placement"])
        failed = outcome.error is not None
        kept = self.cleanup == "never" or (self.cleanup == "on_success" and failed)
        now = datetime.now(UTC).isoformat()
        if outcome.deleted:
            return
        if self.wait_until != "finished" and not failed:
            # Others wait for it now, also if it has ended meanwhile.
            await mark_handed_over(fleet, job, now)
        elif outcome.ended and not kept and (failed or AIRFLOW_2):
            await self._remove(fleet, job)
        elif outcome.ended:
            if not kept:
                self._remove_after_success(job, ti)
            await mark_reported(fleet, job, Reported(at=now, succeeded=not failed, kept=kept))
        elif failed and not _will_retry(ti, outcome.error) and self.on_kill_action == "delete":
            self.log.warning("the task can't follow its job any more: deleting job %s", job["name"])
            await self._delete_if_mine(fleet, job)

    def _remove_after_success(self, job: Mapping[str, Any], ti: Any) -> None:
        """Remove the job in the last callback, once Airflow has taken note of the task's success.

        Airflow 3 calls it after it has sent the success off, also where that reached nobody.
        """

        async def act(fleet: Fleet, job: Mapping[str, Any]) -> None:
            if await task_state(ti) == "success":
                await self._remove(fleet, job)
            else:
                self.log.warning("Airflow has not taken note of the success: %s stays for the next try", job["name"])

        def remove(_: Context) -> None:
            self._settle(job, act, ended=False)

        self.on_success_callback = [*(self.on_success_callback or ()), remove]

    async def _remove(self, fleet: Fleet, job: Mapping[str, Any]) -> None:
        from airflow_provider_multikueue.fleets.stop import delete_on_manager

        await delete_on_manager(fleet, job)
        self.log.info("Removed the ended %s %s from the manager (cleanup=%s).", job["kind"], job["name"], self.cleanup)


class MultiKueueReapOperator(BaseOperator):
    """Delete jobs that nobody waits for any more: what a kill leaves behind that came while no triggerer ran.

    Only jobs of this Airflow on the manager, and by their lifetime: jobs of a task that is over or gone; jobs that
    outlive their task (``wait_until``) when their DAG run is over or gone; never those of ``on_kill_action="keep"``. A
    job whose task's state can't be known is kept. Returns what was done with each job and why:
    ``[{"job": {...}, "task": {...}, "action": "deleted" | "would delete" | "kept" | "failed", "reason": "..."}]``.

    :param delete: False: only look, and say what would be deleted.
    :param older_than: jobs younger than this are kept.
    :param airflow_conn_id: a connection of type ``http`` to this Airflow's own REST API, with a login and a password,
        or a ``token`` in the extra, of a user who may read all DAGs.
    :param multikueue_conn_id: a connection of type ``multikueue``.
    """

    template_fields: Sequence[str] = ("airflow_conn_id", "multikueue_conn_id")
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        delete: bool = True,
        older_than: timedelta = timedelta(minutes=5),
        airflow_conn_id: str = "airflow_api",
        multikueue_conn_id: str = "multikueue_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.delete = delete
        self.older_than = older_than
        self.airflow_conn_id = airflow_conn_id
        self.multikueue_conn_id = multikueue_conn_id

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Sweep once; on a failed deletion the list is the XCom ``report`` and the task fails."""
        from airflow_provider_multikueue.exceptions import MultiKueueError
        from airflow_provider_multikueue.hooks import LogSink, run_sync
        from airflow_provider_multikueue.reaping import reap, summary, tell

        sink = LogSink(self.log)
        entries = run_sync(
            lambda: reap(
                multikueue_conn_id=self.multikueue_conn_id,
                airflow_conn_id=self.airflow_conn_id,
                sink=sink,
                dry_run=not self.delete,
                older_than=self.older_than,
                ti=context["ti"],
            )
        )
        tell(entries, sink)
        self.log.info("%s", summary(entries))
        if any(entry["action"] == "failed" for entry in entries):
            context["ti"].xcom_push("report", entries)
            raise MultiKueueError(f"Not every job could be deleted: {summary(entries)}. The lines above say why.")
        return entries


def _after(begin: datetime | None, span: timedelta | None) -> datetime | None:
    return begin + span if begin is not None and span is not None else None


def _text(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None


def _will_retry(ti: Any, error: BaseException | None) -> bool:
    from airflow_provider_multikueue._compat import AirflowFailException

    return not isinstance(error, AirflowFailException) and will_retry(ti)
