"""An etcd that asks who one is."""

from __future__ import annotations

from elastic.store.etcd import EtcdStore
from elastic.store.etcd.stubs import rpc


async def add_users(endpoint: str) -> None:
    """Switch authentication on. The user job may do everything under /elastic/ and nothing else; root may do all."""
    store = EtcdStore([endpoint])
    auth = store._servers.rotation.current.stub
    for name in ("root", "job"):
        await auth.UserAdd(rpc.AuthUserAddRequest(name=name, password=f"{name}-secret"))
        await auth.RoleAdd(rpc.AuthRoleAddRequest(name=name))
        await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=name, role=name))
    grant = rpc.AuthRoleGrantPermissionRequest(name="job")
    grant.perm.permType, grant.perm.key, grant.perm.range_end = 2, b"/elastic/", b"/elastic0"
    await auth.RoleGrantPermission(grant)
    await auth.AuthEnable(rpc.AuthEnableRequest())
    await store.close()
