from django.contrib import admin
from django.urls import path
from news import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("subscribe", views.subscribe),
    path("reports", views.start_report),
    path("reports/<str:id>", views.report),
]
