{{- define "semblend.name" -}}
{{- printf "%s" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "semblend.labels" -}}
app.kubernetes.io/name: semblend
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "semblend.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "semblend.secretName" -}}
{{- if .Values.secret.existingSecret -}}
{{ .Values.secret.existingSecret }}
{{- else -}}
{{ include "semblend.name" . }}-fleet
{{- end -}}
{{- end -}}

{{/* Settings that all members of the fleet share. */}}
{{- define "semblend.fleetEnv" -}}
- name: SEMBLEND_NATS_URL
  value: {{ .Values.nats.url | quote }}
- name: SEMBLEND_NATS_SUBJECT
  value: {{ .Values.nats.subject | quote }}
- name: SEMBLEND_NAMESPACE_SECRET
  valueFrom:
    secretKeyRef:
      name: {{ include "semblend.secretName" . }}
      key: namespace-secret
{{- end -}}

{{- define "semblend.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "semblend.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Model and certificate volumes, for every pod that looks up a certificate. */}}
{{- define "semblend.modelMounts" -}}
{{- if .Values.model.existingClaim }}
- name: models
  mountPath: /models
  readOnly: true
{{- end }}
{{- if include "semblend.certificateVolume" . }}
- name: certificates
  mountPath: /certificates
  readOnly: true
{{- end }}
{{- end -}}

{{- define "semblend.modelVolumes" -}}
{{- if .Values.model.existingClaim }}
- name: models
  persistentVolumeClaim:
    claimName: {{ .Values.model.existingClaim }}
    readOnly: true
{{- end }}
{{- include "semblend.certificateVolume" . }}
{{- end -}}

{{- define "semblend.certificateVolume" -}}
{{- if and .Values.certificates.existingClaim .Values.certificates.configMap }}
{{- fail "certificates.existingClaim or certificates.configMap, not both" }}
{{- else if .Values.certificates.existingClaim }}
- name: certificates
  persistentVolumeClaim:
    claimName: {{ .Values.certificates.existingClaim }}
    readOnly: true
{{- else if .Values.certificates.configMap }}
- name: certificates
  configMap:
    name: {{ .Values.certificates.configMap }}
{{- end }}
{{- end -}}

{{/* A worker's own setting wins, because a duplicate variable would be an error. */}}
{{- define "semblend.certificateEnv" -}}
{{- if and (include "semblend.certificateVolume" .) (not (hasKey .Values.worker.settings "SEMBLEND_CERTIFICATE_DIR")) }}
- name: SEMBLEND_CERTIFICATE_DIR
  value: /certificates
{{- end }}
{{- end -}}
