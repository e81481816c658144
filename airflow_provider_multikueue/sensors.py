"""Sensors: wait for a job that another task, or another DAG, submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow_provider_multikueue._compat import (
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    conf,
)
from airflow_provider_multikueue.decisions.orders import Orders
from airflow_provider_multikueue.exceptions import JobDeadlineError
from airflow_provider_multikueue.links import LINKS, push_manager_link, push_output_link
from airflow_provider_multikueue.object_storage import check_uri
from airflow_provider_multikueue.tasks import Waiting, WaitsForJob

if TYPE_CHECKING:
    from airflow_provider_multikueue._compat import Context
    from airflow_provider_multikueue.decisions.outcome import Outcome

__all__ = ["MultiKueueAdmissionSensor", "MultiKueueJobSensor"]


class MultiKueueJobSensor(WaitsForJob, BaseSensorOperator):
    """Wait until a job is over and return its report; its pods' output is shown live.

    :param job: a report, its ``job`` part, JSON text of either, or ``namespace/name`` of a Job on the manager.
    :param logs: as in ``MultiKueueJobOperator``.
    :param log_uri: object storage for the whole output, as in ``MultiKueueJobOperator``.
    :param on_kill_action: what happens to the job when the sensor is stopped: ``keep`` (default) or ``delete``.
    :param deferrable: wait in the triggerer.
    :param multikueue_conn_id: a connection of type ``multikueue``.
    """

    template_fields: Sequence[str] = ("job", "log_uri", "multikueue_conn_id")
    operator_extra_links = LINKS
    ui_color = "#e8f0fe"
    until: ClassVar[str] = "finished"
    _owned = False

    def __init__(
        self,
        *,
        job: Any,
        logs: Literal["all", "first", "failed", "none"] = "all",
        log_uri: str | None = None,
        on_kill_action: Literal["delete", "keep"] = "keep",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        multikueue_conn_id: str = "multikueue_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.logs = logs
        self.log_uri = log_uri
        self.on_kill_action = on_kill_action
        self.deferrable = deferrable
        self.multikueue_conn_id = multikueue_conn_id
        self._waiting = Waiting()

    def execute(self, context: Context) -> Any:
        """Wait in the triggerer, in this process, or (mode ``reschedule``) from one look to the next."""
        self._waiting.ti = context["ti"]
        if not self.deferrable and self.reschedule:
            return super().execute(context)
        check_uri("log_uri", self.log_uri)
        part = self._waiting.run(lambda: self._resolve(context))
        self._waiting.job = part
        ends = [datetime.now(UTC) + timedelta(seconds=self.timeout), self._execution_deadline(context["ti"])]
        orders = Orders(
            until=self.until,
            deadline=min(end for end in ends if end is not None).isoformat(),
            logs=self.logs,
            heal=False,
            may_delete=False,
            log_uri=self.log_uri,
        )
        if self.deferrable:
            known = self._waiting.run(lambda: self._follow(part, Orders(until="now", heal=False, may_delete=False)))
            if self._is_over(known):
                return self._conclude_deferrable(context, known)
            self._defer(part, orders)
        return self._conclude(context, self._waiting.run(lambda: self._follow(part, orders, context["ti"].xcom_push)))

    def execute_complete(
        self, context: Context, event: Mapping[str, Any] | None = None, job: dict[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Return the report that the trigger sent, or raise the error that it describes."""
        from airflow_provider_multikueue.decisions.outcome import Outcome

        return self._conclude_deferrable(context, Outcome.from_event(event))

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once (mode ``reschedule``)."""
        outcome = self._waiting.run(lambda: self._look(context))
        return PokeReturnValue(is_done=self._is_over(outcome), xcom_value=self._conclude(context, outcome))

    def _is_over(self, outcome: Outcome) -> bool:
        """Whether one look has shown what is waited for: deferring for it would only be slower."""
        placed = outcome.report is not None and outcome.report["placement"] is not None
        return outcome.ended or (self.until == "admitted" and placed)

    def _conclude_deferrable(self, context: Context, outcome: Outcome) -> dict[str, Any] | None:
        """Write the placement too: the trigger may have had no turn for it, or there was none."""
        if outcome.report is not None and outcome.report["placement"] is not None:
            context["ti"].xcom_push("placement", outcome.report["placement"])
        return self._conclude(context, outcome)

    def _conclude(self, context: Context, outcome: Outcome) -> dict[str, Any] | None:
        report, error = outcome.report, outcome.error
        if error is None:
            return report
        if report is not None:
            context["ti"].xcom_push("report", report)
        timed_out = isinstance(error, JobDeadlineError) and not outcome.ended and not self._is_bound_by_execution
        failure: Exception = AirflowSensorTimeout(str(error)) if timed_out else error
        if self.soft_fail or self.never_fail:
            raise AirflowSkipException(f"Skipped, as the sensor may not fail: {error}") from failure
        raise failure

    @property
    def _is_bound_by_execution(self) -> bool:
        """Whether ``execution_timeout``, after which a task is tried again, is over before the sensor's ``timeout``."""
        limit = self.execution_timeout
        return limit is not None and limit.total_seconds() <= self.timeout

    async def _resolve(self, context: Context) -> dict[str, Any]:
        from airflow_provider_multikueue.fleets.follow import resolve

        async with self.hook.open() as (fleet, _):
            part = await resolve(fleet, self.job)
            push_manager_link(context["ti"], fleet, part)
            push_output_link(context["ti"], self.log_uri, part)
            return part

    async def _look(self, context: Context) -> Outcome:
        orders = Orders(until="now", logs="none", heal=False, may_delete=False)
        return await self._follow(await self._resolve(context), orders, context["ti"].xcom_push)


class MultiKueueAdmissionSensor(MultiKueueJobSensor):
    """Wait until a job is admitted in some region and return its report: ``placement`` says where.

    Data can be copied to that region while the job's nodes come up.

    :param job: a report, its ``job`` part, JSON text of either, or ``namespace/name`` of a Job on the manager.
    """

    until: ClassVar[str] = "admitted"
