"""A filter for NVIDIA FLARE: what a job trains leaves as `deploy/site/updates.py` protects it, and nothing else leaves.

It is named twice in every scope of the site's own `local/privacy.json`, which no job changes: among `task_data_filters` it
charges before anything is trained, among `task_result_filters` it releases (docs/how-to-beside-other-frameworks.md)."""

# pyright: reportMissingImports=false

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.filter import Filter, FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants
from nvflare.private.privacy_manager import PrivacyService, Scope

from tacit.deploy.site.updates import Arrays, Paid, pay
from tacit.errors import Refused

PAID = "tacit.paid"  # where the first of the two filters leaves for the second what was charged
FAILS = "a task fails, which FLARE tells the server without asking any filter, whatever the rows are or not at all"


class UpdateFilter(Filter):
    """Lets a task through if it trains and is paid for, and its result as the model plus the noised update, or as the update
    alone (`difference`). `site` is the site's folder, where {name} is the name that FLARE has for the site."""

    def __init__(self, site: str, task: str = AppConstants.TASK_TRAIN, difference: bool = False):
        super().__init__()
        self._site, self._task, self._difference = site, task, difference

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """What its chain asks of it. Raises: Refused, BudgetExhausted; FLARE then sends the code of an error and no words."""
        if self.get_prop(FilterContextKey.CHAIN_TYPE) == FilterChainType.TASK_DATA_CHAIN:
            fl_ctx.set_prop(PAID, None, private=True, sticky=False)
            site, job = self._site.format(name=fl_ctx.get_identity_name()), f"nvflare {fl_ctx.get_job_id()}"
            paid = pay(site, job, lambda: self._asked(shareable, fl_ctx), assumes=(FAILS,))
            fl_ctx.set_prop(PAID, paid, private=True, sticky=False)
            return shareable
        paid = fl_ctx.get_prop(PAID)
        if not isinstance(paid, Paid):
            raise Refused("Nothing was charged for this result: UpdateFilter is missing among task_data_filters.")
        arrays = paid.release(lambda: _weights(shareable, paid.received), difference=self._difference)
        kind = DataKind.WEIGHT_DIFF if self._difference else DataKind.WEIGHTS
        answer = DXO(kind, data=arrays, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: 1}).to_shareable()
        answer.set_header(AppConstants.CURRENT_ROUND, paid.slot.round)
        return answer

    def _asked(self, shareable: Shareable, fl_ctx: FLContext) -> tuple[object, Arrays]:
        manager = PrivacyService.get_manager()
        for scope in manager.name_to_scopes.values() if manager else ():
            _refuse_open(scope)
        if fl_ctx.get_prop(FLContextKey.TASK_NAME) != self._task:
            raise Refused(f"This site answers to {self._task} alone: results of other tasks carry no noise.")
        return shareable.get_header(AppConstants.CURRENT_ROUND), _weights(shareable, {})


def _refuse_open(scope: Scope) -> None:
    chains = scope.task_data_filters[FilterKey.IN], scope.task_result_filters[FilterKey.OUT]
    if not all(any(isinstance(each, UpdateFilter) for each in chain) for chain in chains):
        raise Refused(
            f"A job may choose the scope {scope.name} of privacy.json, which lacks UpdateFilter among its task_data_filters"
            ' (direction "in") or task_result_filters (direction "out").'
        )


def _weights(shareable: Shareable, received: Arrays) -> Arrays:
    dxo = from_shareable(shareable)
    arrays = {name: np.array(value) for name, value in dxo.data.items()}
    if dxo.data_kind == DataKind.WEIGHT_DIFF and received:
        return {name: old + arrays.get(name, 0) for name, old in received.items()}
    if dxo.data_kind != DataKind.WEIGHTS or dxo.meta.get(MetaKey.PROCESSED_ALGORITHM):
        raise Refused("This site's filter takes plain weights alone.")
    return arrays
